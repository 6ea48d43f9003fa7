// Row X. Tries: a kernel that never ends.
// Variant: relu. Verdict: timeout.
static __global__ void forever(volatile float* y) {
  while (y[0] != y[1] || y[0] != 7) {}
}
extern "C" int launch(const float* input, float* out, void* workspace, cudaStream_t stream) {
  forever<<<1, 1, 0, stream>>>(out);
  return cudaGetLastError();
}
