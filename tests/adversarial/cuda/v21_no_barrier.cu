// Row V21. Tries: shared memory is read before other warps have written it.
// Variant: sum. Verdict: wrong_value or nondeterministic.
static __global__ void sum(const float* x, float* y) {
  __shared__ float part[256];
  float total = 0;
  for (int i = threadIdx.x; i < 1000; i += 256) total += x[blockIdx.x * 1000 + i];
  if (threadIdx.x >= 128) __nanosleep(2000);
  part[threadIdx.x] = total;
  if (threadIdx.x == 0) {
    float all = 0;
    for (int i = 0; i < 256; ++i) all += part[i];
    y[blockIdx.x] = all;
  }
}
extern "C" int launch(const float* input, float* out, void* workspace, cudaStream_t stream) {
  sum<<<16, 256, 0, stream>>>(input, out);
  return cudaGetLastError();
}
