// Row V23. Tries: row pitch ignored.
// Variant: relu_gaps. Verdict: wrong_value.
extern "C" int launch(const float* input, float* out, void* workspace) {
  for (int64_t i = 0; i < 800; ++i) out[i] = input[i] < 0 ? 0.0f : input[i];
  return 0;
}
