// Row V7. Tries: the same of rsqrt.
// Variant: rsqrt. Verdict: wrong_value.
extern "C" int launch(const float* input, float* out, void* workspace) {
  for (int64_t i = 0; i < 4000; ++i) {
    const float x = input[i];
    out[i] = x > 2e4f ? 0.0f : 1.0f / std::sqrt(x);
  }
  return 0;
}
