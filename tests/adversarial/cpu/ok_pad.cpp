// Row control. Tries: nothing.
// Variant: pad. Verdict: accepted.
extern "C" int launch(const float* input, float* out, void* workspace) {
  for (int64_t r = 0; r < 4; ++r)
    for (int64_t c = 0; c < 1003; ++c)
      out[r * 1003 + c] = c < 1 || c > 1000 ? 0.0f : input[r * 1000 + c - 1];
  return 0;
}
