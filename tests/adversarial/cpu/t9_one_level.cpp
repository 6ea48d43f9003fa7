// Row T9. Tries: OpenMP may start no threads any more, in eager either.
// Variant: relu. Verdict: forbidden.
extern "C" void omp_set_max_active_levels(int);
extern "C" int launch(const float* input, float* out, void* workspace) {
  for (int i = 0; i < 4000; ++i) out[i] = input[i] < 0 ? 0.0f : input[i];
  omp_set_max_active_levels(0);
  return 0;
}
