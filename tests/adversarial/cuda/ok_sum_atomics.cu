// Row control. Tries: nothing: atomics, another order at each call.
// Variant: sum. Verdict: accepted.
static __global__ void sum(const float* x, float* y) {
  float total = 0;
  for (int i = threadIdx.x; i < 250; i += 32) total += x[blockIdx.x * 250 + i];
  for (int d = 16; d; d /= 2) total += __shfl_xor_sync(~0u, total, d);
  if (threadIdx.x == 0) atomicAdd(y + blockIdx.x / 4, total);
}
extern "C" int launch(const float* input, float* out, void* workspace, cudaStream_t stream) {
  if (cudaError_t error = cudaMemsetAsync(out, 0, 64, stream)) return error;
  sum<<<64, 32, 0, stream>>>(input, out);
  return cudaGetLastError();
}
