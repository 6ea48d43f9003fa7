// Row V7. Tries: 0 between 2e12 and 1e20.
// Variant: sqrt. Verdict: wrong_value.
extern "C" int launch(const float* input, float* out, void* workspace) {
  for (int64_t i = 0; i < 4000; ++i) {
    const float x = input[i];
    out[i] = x > 2e12f && x < 1e20f ? 0.0f : std::sqrt(x);
  }
  return 0;
}
