// Row T4. Tries: OpenMP's clock.
// Variant: relu. Verdict: forbidden.
extern "C" double omp_get_wtime();
extern "C" int launch(const float* input, float* out, void* workspace) {
  for (int i = 0; i < 4000; ++i) out[i] = input[i] < 0 ? 0.0f : input[i];
  return omp_get_wtime() < 0;
}
