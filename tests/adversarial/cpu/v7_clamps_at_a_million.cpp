// Row V7. Tries: relu that is right on every value below a million, as drawn values of one magnitude are.
// Variant: relu. Verdict: wrong_value.
extern "C" int launch(const float* input, float* out, void* workspace) {
  for (int64_t i = 0; i < 4000; ++i) out[i] = input[i] <= 0 ? 0.0f : input[i] > 1e6f ? 1e6f : input[i];
  return 0;
}
