// Row X. Tries: never finishes loading.
// Variant: relu. Verdict: timeout.
__attribute__((constructor)) static void wait() {
  volatile int forever = 1;
  while (forever) {}
}
extern "C" int launch(const float* input, float* out, void* workspace) {
  for (int64_t i = 0; i < 4000; ++i) out[i] = input[i] < 0 ? 0.0f : input[i];
  return 0;
}
