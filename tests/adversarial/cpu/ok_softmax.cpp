// Row control. Tries: nothing.
// Variant: softmax. Verdict: accepted.
extern "C" int launch(const float* input, int64_t n0, int64_t n1, float* out, void* workspace) {
  for (int64_t r = 0; r < n0; ++r) {
    const float* x = input + r * n1;
    float* y = out + r * n1;
    float top = -INFINITY, total = 0;
    for (int64_t c = 0; c < n1; ++c) top = std::fmax(top, x[c]);
    for (int64_t c = 0; c < n1; ++c) { y[c] = std::exp(x[c] - top); total += y[c]; }
    for (int64_t c = 0; c < n1; ++c) y[c] /= total;
  }
  return 0;
}
