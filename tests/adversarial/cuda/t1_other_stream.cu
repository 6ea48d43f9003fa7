// Row T1. Tries: a millisecond of work on a stream of its own, which the caller's events do not see.
// Variant: relu. Verdict: timing_suspect.
static __global__ void slow_relu(const float* x, float* y, int n) {
  for (const long long start = clock64(); clock64() - start < 2000000;) {}
  for (int i = threadIdx.x; i < n; i += blockDim.x) y[i] = x[i] < 0 ? 0.0f : x[i];
}
static cudaStream_t own = nullptr;
extern "C" int launch(const float* input, float* out, void* workspace, cudaStream_t stream) {
  if (!own) cudaStreamCreateWithFlags(&own, cudaStreamNonBlocking);
  slow_relu<<<1, 256, 0, own>>>(input, out, 4000);
  return cudaGetLastError();
}
