// Row control. Tries: nothing: another formula.
// Variant: softplus. Verdict: accepted.
extern "C" int launch(const float* input, float* out, void* workspace) {
  for (int64_t i = 0; i < 4000; ++i) {
    const float x = input[i];
    out[i] = x > 20.0f ? x : std::fmax(x, 0.0f) + std::log1p(std::exp(-std::fabs(x)));
  }
  return 0;
}
