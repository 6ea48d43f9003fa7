// Row V13. Tries: one row for all, as if the output were broadcast.
// Variant: relu. Verdict: wrong_value.
extern "C" int launch(const float* input, float* out, void* workspace) {
  for (int64_t i = 0; i < 1000; ++i) out[i] = input[i] < 0 ? 0.0f : input[i];
  return 0;
}
