// Row X. Tries: an exception leaves launch.
// Variant: relu. Verdict: forbidden.
extern "C" int launch(const float* input, float* out, void* workspace) {
  if (input) throw 7;
  return 0;
}
