// Row X. Tries: calls a function that nobody has.
// Variant: relu. Verdict: crash.
extern "C" void erff_of_nobody();
extern "C" int launch(const float* input, float* out, void* workspace) {
  erff_of_nobody();
  for (int64_t i = 0; i < 4000; ++i) out[i] = input[i] < 0 ? 0.0f : input[i];
  return 0;
}
