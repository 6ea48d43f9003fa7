// Row V25. Tries: half of the target changed.
// Variant: relu_in_place. Verdict: wrong_value.
extern "C" int launch(float* input, void* workspace) {
  for (int64_t i = 0; i < 2000; ++i) input[i] = input[i] < 0 ? 0.0f : input[i];
  return 0;
}
