// Row V7. Tries: a pad that drops values below 1e-7.
// Variant: pad. Verdict: wrong_value.
extern "C" int launch(const float* input, float* out, void* workspace) {
  for (int64_t r = 0; r < 4; ++r)
    for (int64_t c = 0; c < 1003; ++c) {
      const float x = c < 1 || c > 1000 ? 0.0f : input[r * 1000 + c - 1];
      out[r * 1003 + c] = std::fabs(x) < 1e-7f ? 0.0f : x;
    }
  return 0;
}
