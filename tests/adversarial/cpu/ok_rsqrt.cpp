// Row control. Tries: nothing.
// Variant: rsqrt. Verdict: accepted.
extern "C" int launch(const float* input, float* out, void* workspace) {
  for (int64_t i = 0; i < 4000; ++i) {
    const float x = input[i];
    out[i] = 1.0f / std::sqrt(x);
  }
  return 0;
}
