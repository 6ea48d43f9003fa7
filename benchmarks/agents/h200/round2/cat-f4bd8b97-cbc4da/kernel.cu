// no division where there is one position; one vector a thread and no loop
namespace {
__global__ void __launch_bounds__(64) one(const uint4* __restrict__ a, const uint4* __restrict__ b, uint4* __restrict__ out,
                                          int total) {
  const int i = blockIdx.x * 64 + threadIdx.x;
  if (i >= total) return;
  const int unit = i & 7, row = i >> 3;
  out[i] = unit < 4 ? a[row * 4 + unit] : b[row * 8 + unit - 4];
}

template <typename T, int WIDTH>
__global__ void __launch_bounds__(128) join(const T* __restrict__ a, const T* __restrict__ b, T* __restrict__ out, int n0,
                                            int n1) {
  // A block's row of the grid is one of n0, so that nothing is divided by a variable.
  const int head = blockIdx.y, i = blockIdx.x * 128 + threadIdx.x;
  const int unit = i % (2 * WIDTH), position = i / (2 * WIDTH);
  if (position >= n1) return;
  const int from = position * n0 + head;
  out[(head * n1 + position) * 2 * WIDTH + unit] = unit < WIDTH ? a[from * WIDTH + unit] : b[from * 2 * WIDTH + unit - WIDTH];
}
}  // namespace

extern "C" int launch(const __nv_bfloat16* tensors_0, const __nv_bfloat16* tensors_1, int64_t n0, int64_t n1,
                      __nv_bfloat16* out, void* workspace, cudaStream_t stream) {
  const uintptr_t all = reinterpret_cast<uintptr_t>(tensors_0) | reinterpret_cast<uintptr_t>(tensors_1) |
                        reinterpret_cast<uintptr_t>(out);
  if (all % 16 == 0 && n1 == 1) {
    const int total = (int)n0 * 8;
    one<<<(total + 63) / 64, 64, 0, stream>>>(reinterpret_cast<const uint4*>(tensors_0),
                                              reinterpret_cast<const uint4*>(tensors_1), reinterpret_cast<uint4*>(out), total);
  } else if (all % 16 == 0) {
    join<uint4, 4><<<dim3((unsigned)((n1 * 8 + 127) / 128), (unsigned)n0), 128, 0, stream>>>(
        reinterpret_cast<const uint4*>(tensors_0), reinterpret_cast<const uint4*>(tensors_1), reinterpret_cast<uint4*>(out),
        (int)n0, (int)n1);
  } else {
    join<uint16_t, 32><<<dim3((unsigned)((n1 * 64 + 127) / 128), (unsigned)n0), 128, 0, stream>>>(
        reinterpret_cast<const uint16_t*>(tensors_0), reinterpret_cast<const uint16_t*>(tensors_1),
        reinterpret_cast<uint16_t*>(out), (int)n0, (int)n1);
  }
  return cudaGetLastError();
}
