// Row X. Tries: an illegal instruction.
// Variant: relu. Verdict: crash.
extern "C" int launch(const float* input, float* out, void* workspace) {
  __builtin_trap();
  return 0;
}
