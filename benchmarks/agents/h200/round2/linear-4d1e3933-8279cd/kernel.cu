// one row: as #1 with 256-byte prefetch into the L2; few tiles: 32x32 with K shared out by warps
namespace {
typedef __nv_bfloat16 bf16;

__device__ __forceinline__ float dot8(uint4 a, uint4 b, float sum) {
  const unsigned x[4] = {a.x, a.y, a.z, a.w}, y[4] = {b.x, b.y, b.z, b.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    sum = fmaf(__uint_as_float(x[i] << 16), __uint_as_float(y[i] << 16), sum);
    sum = fmaf(__uint_as_float(x[i] & 0xffff0000u), __uint_as_float(y[i] & 0xffff0000u), sum);
  }
  return sum;
}

__device__ __forceinline__ uint4 load16(const uint4* from) {
  uint4 q;
  asm volatile("ld.global.nc.L1::no_allocate.L2::256B.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(q.x), "=r"(q.y), "=r"(q.z), "=r"(q.w) : "l"(from));
  return q;
}

// One row of input; `vectors` is n1 / 8.
__global__ void __launch_bounds__(128) one_row(const uint4* __restrict__ x, const uint4* __restrict__ w,
                                               bf16* __restrict__ out, int vectors, int columns) {
  const int lane = threadIdx.x & 31;
  const int warps = gridDim.x * 4;
  for (int column = blockIdx.x * 4 + (threadIdx.x >> 5); column < columns; column += warps) {
    const uint4* row = w + (size_t)column * vectors;
    float s0 = 0.f, s1 = 0.f, s2 = 0.f, s3 = 0.f;
    int i = lane;
    for (; i + 96 < vectors; i += 128) {
      const uint4 a = load16(row + i), b = load16(row + i + 32), c = load16(row + i + 64), d = load16(row + i + 96);
      s0 = dot8(a, __ldg(x + i), s0);
      s1 = dot8(b, __ldg(x + i + 32), s1);
      s2 = dot8(c, __ldg(x + i + 64), s2);
      s3 = dot8(d, __ldg(x + i + 96), s3);
    }
    for (; i < vectors; i += 32) s0 = dot8(load16(row + i), __ldg(x + i), s0);
    float sum = (s0 + s1) + (s2 + s3);
    for (int o = 16; o; o >>= 1) sum += __shfl_xor_sync(~0u, sum, o);
    if (lane == 0) out[column] = __float2bfloat16(sum);
  }
}

// Any size and alignment: a warp an output.
__global__ void __launch_bounds__(128) any(const bf16* __restrict__ x, const bf16* __restrict__ w,
                                           bf16* __restrict__ out, int n1, int n2, long long outputs) {
  const int lane = threadIdx.x & 31;
  for (long long o = blockIdx.x * 4ll + (threadIdx.x >> 5); o < outputs; o += gridDim.x * 4ll) {
    const bf16* a = x + (o / n2) * n1;
    const bf16* b = w + (o % n2) * n1;
    float sum = 0.f;
    for (int i = lane; i < n1; i += 32) sum = fmaf(__bfloat162float(a[i]), __bfloat162float(b[i]), sum);
    for (int k = 16; k; k >>= 1) sum += __shfl_xor_sync(~0u, sum, k);
    if (lane == 0) out[o] = __float2bfloat16(sum);
  }
}

constexpr int BM = 64, BN = 64, BK = 64, STAGES = 3, PITCH = BK + 8;

__device__ __forceinline__ void copy16(void* shared, const void* global, bool inside) {
  const unsigned to = (unsigned)__cvta_generic_to_shared(shared);
  const int bytes = inside ? 16 : 0;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(global), "r"(bytes));
}

__device__ __forceinline__ void fragment(unsigned* r, const bf16* shared) {
  const unsigned from = (unsigned)__cvta_generic_to_shared(shared);
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(from));
}

__device__ __forceinline__ void multiply(float* d, const unsigned* a, unsigned b0, unsigned b1) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// 32x32 tiles for few blocks: the four warps share out K, and add up at the end.
constexpr int SM = 32, SN = 32, SK = 128, SPITCH = SK + 8, SSTAGES = 3;

__global__ void __launch_bounds__(128) small_tiles(const bf16* __restrict__ x, const bf16* __restrict__ w,
                                                   bf16* __restrict__ out, int n0, int n1, int n2) {
  extern __shared__ __align__(16) bf16 memory[];
  bf16* as = memory;
  bf16* bs = memory + SSTAGES * SM * SPITCH;
  const int row0 = blockIdx.y * SM, column0 = blockIdx.x * SN;
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
  const int steps = (n1 + SK - 1) / SK;

  auto load = [&](int step, int stage) {
    const int k0 = step * SK;
#pragma unroll
    for (int i = 0; i < SM * SK / 8 / 128; ++i) {
      const int c = i * 128 + threadIdx.x, r = c / (SK / 8), k = (c % (SK / 8)) * 8;
      const bool in_a = row0 + r < n0 && k0 + k < n1;
      copy16(as + stage * SM * SPITCH + r * SPITCH + k, in_a ? x + (size_t)(row0 + r) * n1 + k0 + k : x, in_a);
      const bool in_b = column0 + r < n2 && k0 + k < n1;
      copy16(bs + stage * SN * SPITCH + r * SPITCH + k, in_b ? w + (size_t)(column0 + r) * n1 + k0 + k : w, in_b);
    }
  };

  float sum[2][4][4] = {};
#pragma unroll
  for (int s = 0; s < SSTAGES - 1; ++s) {
    if (s < steps) load(s, s);
    asm volatile("cp.async.commit_group;");
  }
  for (int step = 0; step < steps; ++step) {
    asm volatile("cp.async.wait_group %0;" ::"n"(SSTAGES - 2));
    __syncthreads();
    if (step + SSTAGES - 1 < steps) load(step + SSTAGES - 1, (step + SSTAGES - 1) % SSTAGES);
    asm volatile("cp.async.commit_group;");
    const bf16* a = as + (step % SSTAGES) * SM * SPITCH;
    const bf16* b = bs + (step % SSTAGES) * SN * SPITCH;
#pragma unroll
    for (int k = warp * 32; k < warp * 32 + 32; k += 16) {
      unsigned ra[2][4], rb[2][4];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        fragment(ra[i], a + (i * 16 + (lane & 15)) * SPITCH + k + (lane >> 4) * 8);
        fragment(rb[i], b + (i * 16 + (lane & 7) + ((lane >> 4) << 3)) * SPITCH + k + ((lane >> 3) & 1) * 8);
      }
#pragma unroll
      for (int i = 0; i < 2; ++i)
#pragma unroll
        for (int j = 0; j < 4; ++j) multiply(sum[i][j], ra[i], rb[j >> 1][(j & 1) * 2], rb[j >> 1][(j & 1) * 2 + 1]);
    }
  }
  __syncthreads();
  float* parts = reinterpret_cast<float*>(memory);          // [warp][row][column], 16 KiB
#pragma unroll
  for (int i = 0; i < 2; ++i)
#pragma unroll
    for (int j = 0; j < 4; ++j)
#pragma unroll
      for (int h = 0; h < 2; ++h)
        *reinterpret_cast<float2*>(parts + warp * SM * SN + (i * 16 + (lane >> 2) + h * 8) * SN + j * 8 + (lane & 3) * 2) =
            make_float2(sum[i][j][2 * h], sum[i][j][2 * h + 1]);
  __syncthreads();
  for (int i = threadIdx.x; i < SM * SN / 2; i += 128) {
    const int row = row0 + i / (SN / 2), column = column0 + (i % (SN / 2)) * 2;
    float2 total = make_float2(0.f, 0.f);
#pragma unroll
    for (int p = 0; p < 4; ++p) {
      const float2 part = *reinterpret_cast<const float2*>(parts + p * SM * SN + i * 2);
      total.x += part.x;
      total.y += part.y;
    }
    if (row < n0 && column < n2)
      *reinterpret_cast<__nv_bfloat162*>(out + (size_t)row * n2 + column) = __floats2bfloat162_rn(total.x, total.y);
  }
}

__global__ void __launch_bounds__(128) tiles(const bf16* __restrict__ x, const bf16* __restrict__ w,
                                             bf16* __restrict__ out, int n0, int n1, int n2) {
  extern __shared__ __align__(16) bf16 memory[];
  bf16* as = memory;
  bf16* bs = memory + STAGES * BM * PITCH;
  const int row0 = blockIdx.y * BM, column0 = blockIdx.x * BN;
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
  const int wm = (warp & 1) * 32, wn = (warp >> 1) * 32;
  const int steps = (n1 + BK - 1) / BK;

  auto load = [&](int step, int stage) {
    const int k0 = step * BK;
#pragma unroll
    for (int i = 0; i < BM * BK / 8 / 128; ++i) {
      const int c = i * 128 + threadIdx.x, r = c / (BK / 8), k = (c % (BK / 8)) * 8;
      const bool in_a = row0 + r < n0 && k0 + k < n1;
      copy16(as + stage * BM * PITCH + r * PITCH + k, in_a ? x + (size_t)(row0 + r) * n1 + k0 + k : x, in_a);
      const bool in_b = column0 + r < n2 && k0 + k < n1;
      copy16(bs + stage * BN * PITCH + r * PITCH + k, in_b ? w + (size_t)(column0 + r) * n1 + k0 + k : w, in_b);
    }
  };

  float sum[2][4][4] = {};
#pragma unroll
  for (int s = 0; s < STAGES - 1; ++s) {
    if (s < steps) load(s, s);
    asm volatile("cp.async.commit_group;");
  }
  for (int step = 0; step < steps; ++step) {
    asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 2));
    __syncthreads();
    if (step + STAGES - 1 < steps) load(step + STAGES - 1, (step + STAGES - 1) % STAGES);
    asm volatile("cp.async.commit_group;");
    const bf16* a = as + (step % STAGES) * BM * PITCH;
    const bf16* b = bs + (step % STAGES) * BN * PITCH;
#pragma unroll
    for (int k = 0; k < BK; k += 16) {
      unsigned ra[2][4], rb[2][4];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        fragment(ra[i], a + (wm + i * 16 + (lane & 15)) * PITCH + k + (lane >> 4) * 8);
        fragment(rb[i], b + (wn + i * 16 + (lane & 7) + ((lane >> 4) << 3)) * PITCH + k + ((lane >> 3) & 1) * 8);
      }
#pragma unroll
      for (int i = 0; i < 2; ++i)
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          multiply(sum[i][j], ra[i], rb[j >> 1][(j & 1) * 2], rb[j >> 1][(j & 1) * 2 + 1]);
        }
    }
  }
#pragma unroll
  for (int i = 0; i < 2; ++i)
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int column = column0 + wn + j * 8 + (lane & 3) * 2;
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int row = row0 + wm + i * 16 + (lane >> 2) + h * 8;
        if (row < n0 && column < n2)
          *reinterpret_cast<__nv_bfloat162*>(out + (size_t)row * n2 + column) =
              __floats2bfloat162_rn(sum[i][j][2 * h], sum[i][j][2 * h + 1]);
      }
    }
}
}  // namespace

extern "C" int launch(const __nv_bfloat16* input, const __nv_bfloat16* weight, int64_t n0, int64_t n1, int64_t n2,
                      __nv_bfloat16* out, void* workspace, cudaStream_t stream) {
  const bool aligned = n1 % 8 == 0 && ((reinterpret_cast<uintptr_t>(input) | reinterpret_cast<uintptr_t>(weight)) & 15) == 0 &&
                       (reinterpret_cast<uintptr_t>(out) & 3) == 0;
  if (aligned && n0 == 1) {
    const int blocks = (int)std::min<int64_t>((n2 + 3) / 4, 132 * 16);
    one_row<<<blocks, 128, 0, stream>>>(reinterpret_cast<const uint4*>(input), reinterpret_cast<const uint4*>(weight), out,
                                        (int)(n1 / 8), (int)n2);
  } else if (aligned && ((n2 + BN - 1) / BN) * ((n0 + BM - 1) / BM) < 132) {
    constexpr int bytes = SSTAGES * (SM + SN) * SPITCH * 2;
    cudaFuncSetAttribute(small_tiles, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    small_tiles<<<dim3((unsigned)((n2 + SN - 1) / SN), (unsigned)((n0 + SM - 1) / SM)), 128, bytes, stream>>>(
        input, weight, out, (int)n0, (int)n1, (int)n2);
  } else if (aligned) {
    constexpr int bytes = STAGES * (BM + BN) * PITCH * 2;
    cudaFuncSetAttribute(tiles, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    tiles<<<dim3((unsigned)((n2 + BN - 1) / BN), (unsigned)((n0 + BM - 1) / BM)), 128, bytes, stream>>>(
        input, weight, out, (int)n0, (int)n1, (int)n2);
  } else {
    const int64_t outputs = n0 * n2;
    any<<<(unsigned)std::min<int64_t>((outputs + 3) / 4, 132 * 64), 128, 0, stream>>>(input, weight, out, (int)n1, (int)n2, outputs);
  }
  return cudaGetLastError();
}
