// Row control. Tries: nothing.
// Variant: gelu. Verdict: accepted.
extern "C" int launch(const float* input, float* out, void* workspace) {
  for (int64_t i = 0; i < 4000; ++i) {
    const float x = input[i];
    out[i] = 0.5f * x * (1.0f + std::erf(x * 0.70710678f));
  }
  return 0;
}
