// Row X. Tries: writes far outside of every allocation.
// Variant: relu. Verdict: launch_error or crash.
static __global__ void wild(float* y) { y[1ll << 40] = 1; }
extern "C" int launch(const float* input, float* out, void* workspace, cudaStream_t stream) {
  wild<<<1, 1, 0, stream>>>(out);
  return cudaGetLastError();
}
