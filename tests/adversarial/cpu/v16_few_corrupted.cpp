// Row V16. Tries: 4 % of the elements wrong: inside a rule of 95 % matched.
// Variant: relu. Verdict: wrong_value.
extern "C" int launch(const float* input, float* out, void* workspace) {
  for (int64_t i = 0; i < 4000; ++i) out[i] = input[i] < 0 ? 0.0f : input[i];
  for (int64_t i = 13; i < 4000; i += 25) out[i] = out[i] * 1.5f + 0.1f;
  return 0;
}
