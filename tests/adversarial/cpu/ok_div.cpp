// Row control. Tries: nothing.
// Variant: div. Verdict: accepted.
extern "C" int launch(const float* input, const float* other, float* out, void* workspace) {
  for (int64_t i = 0; i < 4000; ++i) {
    const float a = input[i], b = other[i];
    out[i] = a / b;
  }
  return 0;
}
