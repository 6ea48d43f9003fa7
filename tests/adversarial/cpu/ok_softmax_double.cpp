// Row control. Tries: nothing: float64 inside.
// Variant: softmax. Verdict: accepted.
extern "C" int launch(const float* input, int64_t n0, int64_t n1, float* out, void* workspace) {
  for (int64_t r = 0; r < n0; ++r) {
    const float* x = input + r * n1;
    float* y = out + r * n1;
    float top = -INFINITY, unused = 0;
    double total = 0;
    (void)unused;
    for (int64_t c = 0; c < n1; ++c) top = std::fmax(top, x[c]);
    for (int64_t c = 0; c < n1; ++c) { y[c] = float(std::exp(double(x[c]) - top)); total += std::exp(double(x[c]) - top); }
    for (int64_t c = 0; c < n1; ++c) y[c] = float(std::exp(double(x[c]) - top) / total);
  }
  return 0;
}
