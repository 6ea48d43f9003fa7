// Row V7. Tries: 0 where exp is below 2e-6: everyday values.
// Variant: exp. Verdict: wrong_value.
extern "C" int launch(const float* input, float* out, void* workspace) {
  for (int64_t i = 0; i < 4000; ++i) {
    const float x = input[i];
    out[i] = x < -13.0f ? 0.0f : std::exp(x);
  }
  return 0;
}
