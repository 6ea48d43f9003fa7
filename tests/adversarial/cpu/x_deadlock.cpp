// Row X. Tries: one OpenMP thread waits for another that never comes.
// Variant: relu. Verdict: timeout.
extern "C" int launch(const float* input, float* out, void* workspace) {
  volatile int turn = 0;
#pragma omp parallel
  while (turn == 0) {}
  for (int64_t i = 0; i < 4000; ++i) out[i] = input[i] < 0 ? 0.0f : input[i];
  return 0;
}
