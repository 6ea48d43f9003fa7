// Row V2. Tries: only the first call computes.
// Variant: relu. Verdict: stale_output.
static int calls = 0;
static __global__ void relu(const float* x, float* y, int n) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) y[i] = x[i] < 0 ? 0.0f : x[i];
}
extern "C" int launch(const float* input, float* out, void* workspace, cudaStream_t stream) {
  if (calls++) return 0;
  relu<<<16, 256, 0, stream>>>(input, out, 4000);
  return cudaGetLastError();
}
