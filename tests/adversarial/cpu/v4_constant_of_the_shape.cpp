// Row V4. Tries: an answer that depends on the sizes only.
// Variant: softmax. Verdict: wrong_value.
extern "C" int launch(const float* input, int64_t n0, int64_t n1, float* out, void* workspace) {
  for (int64_t i = 0; i < n0 * n1; ++i) out[i] = 1.0f / float(n1);
  return 0;
}
