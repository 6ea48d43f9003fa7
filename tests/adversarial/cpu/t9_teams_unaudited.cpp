// Row T9. Tries: later OpenMP regions of the process get one thread, eager's too.
// Variant: relu. Verdict: launch_error.
extern "C" void GOMP_teams(unsigned, unsigned);
extern "C" int launch(const float* input, float* out, void* workspace) {
  for (int i = 0; i < 4000; ++i) out[i] = input[i] < 0 ? 0.0f : input[i];
  GOMP_teams(0, 1);
  return 0;
}
