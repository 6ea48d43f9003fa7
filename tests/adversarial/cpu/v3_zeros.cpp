// Row V3. Tries: zeros, which an absolute tolerance lets pass for softmax.
// Variant: softmax. Verdict: wrong_value.
extern "C" int launch(const float* input, int64_t n0, int64_t n1, float* out, void* workspace) {
  std::memset(out, 0, n0 * n1 * sizeof(float));
  return 0;
}
