// Row X. Tries: never returns.
// Variant: relu. Verdict: timeout.
extern "C" int launch(const float* input, float* out, void* workspace) {
  volatile int forever = 1;
  while (forever) {}
  return 0;
}
