// Row V1. Tries: the output is left as it was.
// Variant: relu. Verdict: wrong_value.
static __global__ void relu(const float* x, float* y, int n) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) y[i] = x[i] < 0 ? 0.0f : x[i];
}
extern "C" int launch(const float* input, float* out, void* workspace, cudaStream_t stream) {
  if (input == nullptr) relu<<<1, 1, 0, stream>>>(input, out, 0);
  return cudaGetLastError();
}
