// Row control. Tries: nothing.
// Variant: add. Verdict: accepted.
extern "C" int launch(const float* input, const float* other, int64_t n0, float* out, void* workspace) {
  for (int64_t i = 0; i < n0 * 48; ++i) out[i] = input[i] + other[i % 48];
  return 0;
}
