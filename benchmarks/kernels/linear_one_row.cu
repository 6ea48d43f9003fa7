// linear of one row: a block makes 8 columns with mma, its 16 warps share K, all loads of a thread are under way at once
namespace {
typedef __nv_bfloat16 bf16;

// Not `.nc`: a barrier then keeps all loads before the first product.
__device__ __forceinline__ uint4 again(const uint4* p) {
  uint4 q;
  asm volatile("ld.global.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(q.x), "=r"(q.y), "=r"(q.z), "=r"(q.w) : "l"(p) : "memory");
  return q;
}

__device__ __forceinline__ uint4 once(const uint4* p) {
  uint4 q;
  asm volatile("ld.global.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(q.x), "=r"(q.y), "=r"(q.z), "=r"(q.w) : "l"(p) : "memory");
  return q;
}

__device__ __forceinline__ void multiply(float* d, const unsigned* a, unsigned b0, unsigned b1) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

constexpr int WARPS = 16;

// One row of STEPS * 1024 elements. The input is all 16 rows of A, lanes 4 g .. 4 g + 3 have column g of B: the products'
// sums over a warp come out of the mma without a shuffle. Which word is which k does not matter, as both sides agree.
template <int STEPS>
__global__ void __launch_bounds__(WARPS * 32) eight_columns(const uint4* __restrict__ x, const uint4* __restrict__ w,
                                                            bf16* __restrict__ out) {
  __shared__ __align__(16) float parts[8][WARPS + 4];
  const unsigned lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  const unsigned k = warp * 8 + (lane & 3);  // vectors
  const uint4* row = w + (size_t)(blockIdx.x * 8 + (lane >> 2)) * (STEPS * WARPS * 8) + k;
  uint4 q[STEPS][2], p[STEPS][2];
#pragma unroll
  for (int s = 0; s < STEPS; ++s) q[s][0] = once(row + s * WARPS * 8), q[s][1] = once(row + s * WARPS * 8 + 4);
#pragma unroll
  for (int s = 0; s < STEPS; ++s) p[s][0] = again(x + k + s * WARPS * 8), p[s][1] = again(x + k + s * WARPS * 8 + 4);
  float d[2][4] = {};
#pragma unroll
  for (int s = 0; s < STEPS; ++s) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const uint4 a = p[s][half], b = q[s][half];
      const unsigned first[4] = {a.x, a.x, a.y, a.y}, second[4] = {a.z, a.z, a.w, a.w};
      multiply(d[0], first, b.x, b.y);
      multiply(d[1], second, b.z, b.w);
    }
  }
  if (lane < 4) {
    parts[lane * 2][warp] = d[0][0] + d[1][0];
    parts[lane * 2 + 1][warp] = d[0][1] + d[1][1];
  }
  __syncthreads();
  if (threadIdx.x < 8) {
    float4 sum = make_float4(0.f, 0.f, 0.f, 0.f);
#pragma unroll
    for (int i = 0; i < WARPS / 4; ++i) {
      const float4 part = *reinterpret_cast<const float4*>(&parts[threadIdx.x][i * 4]);
      sum = make_float4(sum.x + part.x, sum.y + part.y, sum.z + part.z, sum.w + part.w);
    }
    out[blockIdx.x * 8 + threadIdx.x] = __float2bfloat16((sum.x + sum.y) + (sum.z + sum.w));
  }
}

// Any size and alignment: a warp a column.
__global__ void __launch_bounds__(128) any(const bf16* __restrict__ x, const bf16* __restrict__ w, bf16* __restrict__ out,
                                           long long terms, long long columns) {
  const int lane = threadIdx.x & 31;
  for (long long o = blockIdx.x * 4ll + (threadIdx.x >> 5); o < columns; o += gridDim.x * 4ll) {
    const bf16* row = w + o * terms;
    float sum = 0.f;
    for (long long i = lane; i < terms; i += 32) sum = fmaf(__bfloat162float(x[i]), __bfloat162float(row[i]), sum);
    for (int s = 16; s; s >>= 1) sum += __shfl_xor_sync(~0u, sum, s);
    if (lane == 0) out[o] = __float2bfloat16(sum);
  }
}
}  // namespace

// n0: terms of each sum; n1: columns.
extern "C" int launch(const __nv_bfloat16* input, const __nv_bfloat16* weight, int64_t n0, int64_t n1, __nv_bfloat16* out,
                      void* workspace, cudaStream_t stream) {
  const bool aligned = ((reinterpret_cast<uintptr_t>(input) | reinterpret_cast<uintptr_t>(weight)) & 15) == 0;
  const uint4 *x = reinterpret_cast<const uint4*>(input), *w = reinterpret_cast<const uint4*>(weight);
  const unsigned blocks = (unsigned)(n1 / 8);
  if (aligned && n1 % 8 == 0 && n0 == 1024) eight_columns<1><<<blocks, WARPS * 32, 0, stream>>>(x, w, out);
  else if (aligned && n1 % 8 == 0 && n0 == 2048) eight_columns<2><<<blocks, WARPS * 32, 0, stream>>>(x, w, out);
  else if (aligned && n1 % 8 == 0 && n0 == 3072) eight_columns<3><<<blocks, WARPS * 32, 0, stream>>>(x, w, out);
  else any<<<(unsigned)std::min<int64_t>((n1 + 3) / 4, 132 * 64), 128, 0, stream>>>(input, weight, out, n0, n1);
  return cudaGetLastError();
}
