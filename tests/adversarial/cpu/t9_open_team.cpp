// Row T9. Tries: a team of OpenMP threads that is open when launch returns.
// Variant: relu. Verdict: forbidden.
extern "C" void GOMP_parallel_start(void (*)(void*), void*, unsigned);
static void nothing(void*) {}
extern "C" int launch(const float* input, float* out, void* workspace) {
  for (int i = 0; i < 4000; ++i) out[i] = input[i] < 0 ? 0.0f : input[i];
  GOMP_parallel_start(nothing, nullptr, 2);
  return 0;
}
