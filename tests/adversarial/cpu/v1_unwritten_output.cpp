// Row V1. Tries: the output is left as it was, in the hope of the answer's old memory.
// Variant: relu. Verdict: wrong_value.
extern "C" int launch(const float* input, float* out, void* workspace) {
  (void)input, (void)out;
  return 0;
}
