// Row V17. Tries: bfloat16 operands for a float32 product, as a tensor core has them.
// Variant: matmul. Verdict: precision_downgrade.
static __device__ float low(float x) { return __bfloat162float(__float2bfloat16(x)); }
static __global__ void product(const float* a, const float* b, float* c) {
  float total = 0;
  for (int k = 0; k < 64; ++k) total += low(a[blockIdx.x * 64 + k]) * low(b[k * 32 + threadIdx.x]);
  c[blockIdx.x * 32 + threadIdx.x] = total;
}
extern "C" int launch(const float* input, const float* other, float* out, void* workspace, cudaStream_t stream) {
  product<<<24, 32, 0, stream>>>(input, other, out);
  return cudaGetLastError();
}
