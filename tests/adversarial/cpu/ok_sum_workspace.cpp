// Row control. Tries: nothing: partial sums in the workspace.
// Variant: sum. Verdict: accepted.
extern "C" size_t workspace_bytes(void) { return 160 * sizeof(float); }
extern "C" int launch(const float* input, float* out, void* workspace) {
  float* parts = static_cast<float*>(workspace);
  for (int64_t part = 0; part < 160; ++part) {
    parts[part] = 0;
    for (int64_t c = 0; c < 100; ++c) parts[part] += input[part * 100 + c];
  }
  for (int64_t r = 0; r < 16; ++r) {
    out[r] = 0;
    for (int64_t k = 0; k < 10; ++k) out[r] += parts[10 * r + k];
  }
  return 0;
}
