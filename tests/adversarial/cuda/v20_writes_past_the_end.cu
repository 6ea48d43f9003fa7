// Row V20. Tries: one element past the output.
// Variant: relu. Verdict: oob.
static __global__ void relu(const float* x, float* y, int n) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) y[i] = x[i] < 0 ? 0.0f : x[i];
}
extern "C" int launch(const float* input, float* out, void* workspace, cudaStream_t stream) {
  relu<<<16, 256, 0, stream>>>(input, out, 4001);
  return cudaGetLastError();
}
