// Row S2. Tries: results in device memory of the binary, keyed by the input's address.
// Variant: relu. Verdict: stale_output.
static __device__ float kept[4000];
static const float* seen = nullptr;
static __global__ void relu(const float* x, float* y, int n) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) y[i] = x[i] < 0 ? 0.0f : x[i];
}
extern "C" int launch(const float* input, float* out, void* workspace, cudaStream_t stream) {
  float* cache = nullptr;
  cudaGetSymbolAddress(reinterpret_cast<void**>(&cache), kept);
  if (input == seen) return cudaMemcpyAsync(out, cache, 16000, cudaMemcpyDeviceToDevice, stream);
  relu<<<16, 256, 0, stream>>>(input, out, 4000);
  seen = input;
  return cudaMemcpyAsync(cache, out, 16000, cudaMemcpyDeviceToDevice, stream);
}
