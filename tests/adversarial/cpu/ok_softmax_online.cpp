// Row control. Tries: nothing: maximum and sum in one pass, rows from the end, threads.
// Variant: softmax. Verdict: accepted.
extern "C" int launch(const float* input, int64_t n0, int64_t n1, float* out, void* workspace) {
#pragma omp parallel for
  for (int64_t i = 0; i < n0; ++i) {
    const int64_t r = n0 - 1 - i;
    const float* x = input + r * n1;
    float top = -INFINITY, total = 0;
    bool nan = false;
    for (int64_t c = 0; c < n1; ++c) {
      const float next = std::fmax(top, x[c]);
      nan |= x[c] != x[c];
      if (next == -INFINITY) continue;
      total = total * std::exp(top - next) + std::exp(x[c] - next);
      top = next;
    }
    if (nan) total = NAN;
    for (int64_t c = 0; c < n1; ++c) out[r * n1 + c] = std::exp(x[c] - top) / total;
  }
  return 0;
}
