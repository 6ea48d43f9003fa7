// Row V8. Tries: a fresh layer's bias is 0.
// Variant: add. Verdict: wrong_value.
extern "C" int launch(const float* input, const float* other, int64_t n0, float* out, void* workspace) {
  std::memcpy(out, input, n0 * 48 * sizeof(float));
  return 0;
}
