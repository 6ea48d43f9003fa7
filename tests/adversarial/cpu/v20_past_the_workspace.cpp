// Row V20. Tries: writes behind its workspace.
// Variant: relu. Verdict: oob.
extern "C" size_t workspace_bytes(void) { return 64; }
extern "C" int launch(const float* input, float* out, void* workspace) {
  for (int64_t i = 0; i < 4000; ++i) out[i] = input[i] < 0 ? 0.0f : input[i];
  static_cast<char*>(workspace)[64] = 1;
  return 0;
}
