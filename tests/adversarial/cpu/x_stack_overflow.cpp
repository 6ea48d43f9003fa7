// Row X. Tries: endless recursion.
// Variant: relu. Verdict: crash.
__attribute__((noinline)) static float deep(const float* x, volatile int64_t n) {
  volatile float pad[512];
  pad[n % 512] = x[n % 4000];
  return deep(x, n + 1) + pad[n % 512];
}
extern "C" int launch(const float* input, float* out, void* workspace) {
  out[0] = deep(input, 0);
  return 0;
}
