// Row V5. Tries: layer_norm of normal values is nearly its input.
// Variant: layer_norm. Verdict: wrong_value.
extern "C" int launch(const float* input, const float* weight, const float* bias, int64_t n0, float* out,
                      void* workspace) {
  std::memcpy(out, input, n0 * 64 * sizeof(float));
  return 0;
}
