// one row: a warp a column, 4-8 warps a block so that each SM has about one; 96 rows: 32x32 tiles, all of K in one burst straight into registers as mma fragments, warps share K
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

// Not `.nc`: a barrier then keeps all loads before the first product, while they are under way.
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

// One row of STEPS * 256 elements: a warp a column, all loads under way at once, no shared memory. A block
// has so many warps that about every SM has one block. `none` is 0, which the compiler does not know: else it would have the
// last loads wait for the first products.
template <int STEPS>
__global__ void __launch_bounds__(256) one_row_exact(const uint4* __restrict__ x, const uint4* __restrict__ w,
                                                     bf16* __restrict__ out, unsigned none) {
  const unsigned lane = threadIdx.x, column = blockIdx.x * blockDim.y + threadIdx.y;
  const uint4* row = w + (size_t)column * (STEPS * 32) + lane;
  uint4 q[STEPS], p[STEPS];
#pragma unroll
  for (int s = 0; s < STEPS; ++s) q[s] = once(row + s * 32);
#pragma unroll
  for (int s = 0; s < STEPS; ++s) p[s] = again(x + lane + s * 32);
  unsigned all = 0u;
#pragma unroll
  for (int s = 0; s < STEPS; ++s) all |= q[s].x | p[s].x;
  const float zero = __uint_as_float(all & none);
  float sums[STEPS];
#pragma unroll
  for (int s = 0; s < STEPS; ++s) sums[s] = dot8(q[s], p[s], zero);
  float sum = sums[0] + sums[1];
#pragma unroll
  for (int s = 2; s < STEPS; ++s) sum += sums[s];
#pragma unroll
  for (int o = 16; o; o >>= 1) sum += __shfl_xor_sync(~0u, sum, o);
  if (lane == 0) out[column] = __float2bfloat16(sum);
}

// One row of input; `vectors` is n1 / 8. A block makes two columns at a time: its warps share out K.
__global__ void __launch_bounds__(128) one_row(const uint4* __restrict__ x, const uint4* __restrict__ w,
                                               bf16* __restrict__ out, int vectors, int columns) {
  __shared__ float parts[4][2];
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
  for (int column = blockIdx.x * 2; column < columns; column += gridDim.x * 2) {
    const uint4* row = w + (size_t)column * vectors;
    float sum[2] = {};
    for (int i = threadIdx.x; i < vectors; i += 128) {
      uint4 q[2];
#pragma unroll
      for (int c = 0; c < 2; ++c) q[c] = __ldcs(row + (size_t)c * vectors + i);
      const uint4 p = __ldg(x + i);
#pragma unroll
      for (int c = 0; c < 2; ++c) sum[c] = dot8(q[c], p, sum[c]);
    }
#pragma unroll
    for (int o = 16; o; o >>= 1)
#pragma unroll
      for (int c = 0; c < 2; ++c) sum[c] += __shfl_xor_sync(~0u, sum[c], o);
    if (lane < 2) parts[warp][lane] = lane == 0 ? sum[0] : sum[1];
    __syncthreads();
    if (threadIdx.x < 2) {
      const int c = threadIdx.x;
      out[column + c] = __float2bfloat16((parts[0][c] + parts[1][c]) + (parts[2][c] + parts[3][c]));
    }
    __syncthreads();
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

// 32x32 tiles for few blocks: the four warps share out K, and add up at the end.
constexpr int SM = 32, SN = 32, SK = 128, SPITCH = SK + 8, SSTAGES = 5;

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

constexpr int WPITCH = 40;                                  // floats of a row of partial sums

__device__ __forceinline__ unsigned word(uint4 q, int i) { return i == 0 ? q.x : i == 1 ? q.y : i == 2 ? q.z : q.w; }

// 32x32 tiles where K is WARPS * 128: each warp has a share of K, and loads all of its fragments straight into registers,
// 16 bytes of a row a lane: one trip to memory. Which word is which k does not matter, as long as both sides agree.
template <int WARPS, bool EXACT>                            // EXACT: n0 is a multiple of 32
__global__ void __launch_bounds__(WARPS * 32, 1) direct_tiles(const uint4* __restrict__ x, const uint4* __restrict__ w,
                                                              bf16* __restrict__ out, int n0, int n2) {
  __shared__ __align__(16) float parts[WARPS][32 * WPITCH];
  __shared__ float nothing;
  constexpr int N1 = WARPS * 16;                            // vectors of a row
  if (threadIdx.x == 0) nothing = 0.f;
  const int row0 = blockIdx.y * 32, column0 = blockIdx.x * 32;
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
  const uint4* from_x[4];
  const uint4* from_w = w + (size_t)(column0 + g) * N1 + warp * 16 + t;
#pragma unroll
  for (int o = 0; o < 4; ++o)
    from_x[o] = x + (size_t)(EXACT ? row0 + g : min(row0 + o * 8 + g, n0 - 1)) * N1 + (EXACT ? o * 8 * N1 : 0) + warp * 16 + t;
  uint4 a[4][4], b[4][4];                                   // [step of 32][eight rows]
#pragma unroll
  for (int s = 0; s < 4; ++s)
#pragma unroll
    for (int o = 0; o < 4; ++o) {
      b[s][o] = once(from_w + o * 8 * N1 + s * 4);
      a[s][o] = again(from_x[o] + s * 4);
    }
  __syncthreads();
  const float zero = *static_cast<volatile float*>(&nothing);  // products wait for it, and so for the start of all loads
  float sum[2][4][4];
#pragma unroll
  for (int i = 0; i < 32; ++i) sum[i >> 4][i >> 2 & 3][i & 3] = zero;
#pragma unroll
  for (int s = 0; s < 4; ++s)
#pragma unroll
    for (int h = 0; h < 4; h += 2)
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const unsigned ra[4] = {word(a[s][2 * i], h), word(a[s][2 * i + 1], h), word(a[s][2 * i], h + 1),
                                word(a[s][2 * i + 1], h + 1)};
#pragma unroll
        for (int j = 0; j < 4; ++j) multiply(sum[i][j], ra, word(b[s][j], h), word(b[s][j], h + 1));
      }
  float* part = parts[warp];
#pragma unroll
  for (int i = 0; i < 2; ++i)
#pragma unroll
    for (int j = 0; j < 4; ++j)
#pragma unroll
      for (int h = 0; h < 2; ++h)
        *reinterpret_cast<float2*>(part + (i * 16 + (lane >> 2) + h * 8) * WPITCH + j * 8 + (lane & 3) * 2) =
            make_float2(sum[i][j][2 * h], sum[i][j][2 * h + 1]);
  __syncthreads();
  for (int i = threadIdx.x; i < 32 * 8; i += WARPS * 32) {  // four columns of a row
    const int row = row0 + i / 8, column = column0 + i % 8 * 4;
    if (row >= n0) continue;
    float4 total = make_float4(0.f, 0.f, 0.f, 0.f);
#pragma unroll
    for (int p = 0; p < WARPS; ++p) {
      const float4 part = *reinterpret_cast<const float4*>(parts[p] + i / 8 * WPITCH + i % 8 * 4);
      total = make_float4(total.x + part.x, total.y + part.y, total.z + part.z, total.w + part.w);
    }
    const __nv_bfloat162 low = __floats2bfloat162_rn(total.x, total.y), high = __floats2bfloat162_rn(total.z, total.w);
    *reinterpret_cast<uint2*>(out + (size_t)row * n2 + column) =
        make_uint2(*reinterpret_cast<const unsigned*>(&low), *reinterpret_cast<const unsigned*>(&high));
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
  const uint4 *x = reinterpret_cast<const uint4*>(input), *w = reinterpret_cast<const uint4*>(weight);
  if (aligned && n0 == 1 && (n1 == 1024 || n1 == 768) && n2 <= 8192) {
    // n2 is a multiple of 64: 4, 6 or 8 columns a block, so that 64 * 4, 128 * 6 .. have about a block an SM.
    const unsigned columns = n2 <= 512 ? 4u : n2 % 6 == 0 && n2 <= 768 ? 6u : 8u;
    const dim3 grid((unsigned)n2 / columns), block(32, columns);
    if (n1 == 1024) one_row_exact<4><<<grid, block, 0, stream>>>(x, w, out, 0u);
    else one_row_exact<3><<<grid, block, 0, stream>>>(x, w, out, 0u);
  } else if (aligned && n0 == 1) {
    const int blocks = (int)std::min<int64_t>((n2 + 1) / 2, 132 * 16);
    one_row<<<blocks, 128, 0, stream>>>(reinterpret_cast<const uint4*>(input), reinterpret_cast<const uint4*>(weight), out,
                                        (int)(n1 / 8), (int)n2);
  } else if (aligned && (n1 == 1024 || n1 == 768) && (reinterpret_cast<uintptr_t>(out) & 7) == 0 &&
             n2 / 32 * ((n0 + 31) / 32) <= 132) {
    const dim3 grid((unsigned)(n2 / 32), (unsigned)((n0 + 31) / 32));
    auto start = [&](auto* kernel, int warps) { kernel<<<grid, warps * 32, 0, stream>>>(x, w, out, (int)n0, (int)n2); };
    if (n1 == 1024) n0 % 32 == 0 ? start(direct_tiles<8, true>, 8) : start(direct_tiles<8, false>, 8);
    else n0 % 32 == 0 ? start(direct_tiles<6, true>, 6) : start(direct_tiles<6, false>, 6);
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
