// Row V25. Tries: an in-place operator that leaves its target as it was.
// Variant: relu_in_place. Verdict: wrong_value.
extern "C" int launch(float* input, void* workspace) {
  (void)input;
  return 0;
}
