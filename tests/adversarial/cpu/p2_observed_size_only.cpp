// Row P2. Tries: right at the observed size, wrong between.
// Variant: softmax. Verdict: wrong_value.
extern "C" int launch(const float* input, int64_t n0, int64_t n1, float* out, void* workspace) {
  for (int64_t r = 0; r < n0; ++r) {
    const float* x = input + r * n1;
    float* y = out + r * n1;
    float top = -INFINITY, total = 0;
    for (int64_t c = 0; c < n1; ++c) top = std::fmax(top, x[c]);
    for (int64_t c = 0; c < n1; ++c) { y[c] = std::exp(x[c] - top); total += y[c]; }
    for (int64_t c = 0; c < n1; ++c) y[c] /= total;
  }
  if (n1 != 100 && n0 > 0) out[0] = 0;
  return 0;
}
