// Row control. Tries: nothing.
// Variant: relu_in_place. Verdict: accepted.
extern "C" int launch(float* input, void* workspace) {
  for (int64_t i = 0; i < 4000; ++i) input[i] = input[i] < 0 ? 0.0f : input[i];
  return 0;
}
