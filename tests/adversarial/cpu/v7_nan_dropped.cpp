// Row V7. Tries: nan becomes 0 in a comparison.
// Variant: relu. Verdict: wrong_value.
extern "C" int launch(const float* input, float* out, void* workspace) {
  for (int64_t i = 0; i < 4000; ++i) out[i] = input[i] > 0 ? input[i] : 0.0f;
  return 0;
}
