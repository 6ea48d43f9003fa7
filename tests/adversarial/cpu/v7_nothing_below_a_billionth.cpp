// Row V7. Tries: relu that takes normal numbers below 1e-9 for nothing.
// Variant: relu. Verdict: wrong_value.
extern "C" int launch(const float* input, float* out, void* workspace) {
  for (int64_t i = 0; i < 4000; ++i) out[i] = input[i] <= 1e-9f ? 0.0f : input[i];
  return 0;
}
