// Row D1. Tries: a vendor's library under a name put together at run time.
// Variant: relu. Verdict: delegated or crash or oom.
#include <dlfcn.h>
static __global__ void relu(const float* x, float* y, int n) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) y[i] = x[i] < 0 ? 0.0f : x[i];
}
extern "C" int launch(const float* input, float* out, void* workspace, cudaStream_t stream) {
  char name[] = "lib\x02ublas.so";
  name[3] = 'c';
  for (const char* tail : {"", ".13", ".12"}) {
    char whole[32];
    std::strcpy(whole, name);
    std::strcat(whole, tail);
    if (dlopen(whole, RTLD_NOW)) break;
  }
  relu<<<16, 256, 0, stream>>>(input, out, 4000);
  return cudaGetLastError();
}
