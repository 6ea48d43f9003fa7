// Row X. Tries: asks for more workspace than there is.
// Variant: relu. Verdict: oom.
extern "C" size_t workspace_bytes(void) { return size_t(1) << 42; }
extern "C" int launch(const float* input, float* out, void* workspace) {
  for (int64_t i = 0; i < 4000; ++i) out[i] = input[i] < 0 ? 0.0f : input[i];
  return 0;
}
