// one row: a block a column, one vector a thread, products by mma (diagonal entries); n0<=96: 96x32 tiles, K shared out by a cluster of 4, sums through its shared memory
namespace {
typedef __nv_bfloat16 bf16;

__device__ __forceinline__ void multiply(float* d, const unsigned* a, unsigned b0, unsigned b1) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Eight products of each lane, added up over each four lanes: entries (i, i) of d[0] and (i + 8, i) of d[1] are the sums of
// lanes 4 i .. 4 i + 3. Which product is which k does not matter, as long as both sides agree; other entries mean nothing.
__device__ __forceinline__ void dot8(float (&d)[2][4], uint4 x, uint4 w) {
  const unsigned a[4] = {x.x, x.y, x.z, x.w};
  multiply(d[0], a, w.x, w.z);
  multiply(d[1], a, w.y, w.w);
}

__device__ __forceinline__ uint4 again(const uint4* p) {
  uint4 q;
  asm volatile("ld.global.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(q.x), "=r"(q.y), "=r"(q.z), "=r"(q.w) : "l"(p) : "memory");
  return q;
}

__device__ __forceinline__ uint4 once(const uint4* p) {
  uint4 q;
  asm volatile("ld.global.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(q.x), "=r"(q.y), "=r"(q.z), "=r"(q.w) : "l"(p) : "memory");
  return q;
}

// The sum of a block's column, from its warps' entries; valid in the first thread.
template <int WARPS>
__device__ __forceinline__ float whole(const float (&d)[2][4], float* parts, int warp, int lane) {
  const int i = lane >> 2;                                  // entry (i, i) is in lane 4 i + i / 2
  if ((lane & 3) == i >> 1) parts[warp * 8 + i] = i & 1 ? d[0][1] + d[1][3] : d[0][0] + d[1][2];
  __syncthreads();
  float sum = 0.f;
  if (warp == 0) {
    sum = lane < WARPS * 8 ? parts[lane] : 0.f;
#pragma unroll
    for (int o = 16; o; o >>= 1) sum += __shfl_xor_sync(~0u, sum, o);
  }
  return sum;
}

// One row of input of WARPS * 256 elements: a block a column, no loop, a vector of each side a thread.
template <int WARPS>
__global__ void __launch_bounds__(WARPS * 32) one_row_exact(const uint4* __restrict__ x, const uint4* __restrict__ w,
                                                            bf16* __restrict__ out) {
  __shared__ float parts[WARPS * 8];
  const uint4 q = once(w + (size_t)blockIdx.x * (WARPS * 32) + threadIdx.x), p = again(x + threadIdx.x);
  float d[2][4] = {};
  dot8(d, p, q);
  const float sum = whole<WARPS>(d, parts, threadIdx.x >> 5, threadIdx.x & 31);
  if (threadIdx.x == 0) out[blockIdx.x] = __float2bfloat16(sum);
}

// One row of input; `vectors` is n1 / 8. A block makes a column at a time: its warps share out K.
__global__ void __launch_bounds__(128) one_row(const uint4* __restrict__ x, const uint4* __restrict__ w,
                                               bf16* __restrict__ out, int vectors, int columns) {
  __shared__ float parts[32];
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
  for (int column = blockIdx.x; column < columns; column += gridDim.x) {
    const uint4* row = w + (size_t)column * vectors;
    float d[2][4] = {};
#pragma unroll 1
    for (int first = 0; first < vectors; first += 128) {    // all lanes of a warp together
      const int i = first + threadIdx.x;
      const uint4 q = i < vectors ? once(row + i) : make_uint4(0u, 0u, 0u, 0u);
      const uint4 p = i < vectors ? again(x + i) : make_uint4(0u, 0u, 0u, 0u);
      __syncwarp();
      dot8(d, p, q);
    }
    const float sum = whole<4>(d, parts, warp, lane);
    if (threadIdx.x == 0) out[column] = __float2bfloat16(sum);
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

constexpr int SPLITS = 4, XSTAGES = 5;                    // blocks of a cluster
constexpr int XM = 96, XN = 8 * SPLITS, XK = 64, XPITCH = XK + 8;
constexpr int WM = 48, XWARPS = 8, XTHREADS = XWARPS * 32;  // rows of a warp
constexpr int SHARES = XWARPS / (XM / WM) / (XN / 16);      // warps that share out K of one part of the tile
constexpr int PASS = XTHREADS / (XK / 8);                   // rows that the threads load at a time
static_assert(XM % PASS == 0 && XN % PASS == 0 && XK / 16 % SHARES == 0, "whole passes");
constexpr int XSTAGE = (XM + XN) * XPITCH;                  // elements
constexpr int XBYTES = XSTAGES * XSTAGE * 2 + SPLITS * SHARES * XM * 8 * 4;

// Few rows, few tiles: the blocks of a cluster share out K of one tile, and each adds up eight of its columns, which the
// others write into its shared memory. Each weight is read once.
__global__ void __launch_bounds__(XTHREADS) split(const bf16* __restrict__ x, const bf16* __restrict__ w,
                                                  bf16* __restrict__ out, int n0, int n1, int n2) {
  extern __shared__ __align__(16) bf16 memory[];
  float* parts = reinterpret_cast<float*>(memory + XSTAGES * XSTAGE);   // [rank][share][row][column of eight]
  unsigned rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  const int row0 = blockIdx.y * XM, column0 = (blockIdx.x / SPLITS) * XN;
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
  const int wm = (warp % (XM / WM)) * WM, wn = (warp / (XM / WM)) % (XN / 16) * 16, share = warp / (XM / WM) / (XN / 16);
  const int each = (n1 + SPLITS * 16 - 1) / (SPLITS * 16) * 16, begin = (int)rank * each, end = min(n1, begin + each);
  const int steps = end > begin ? (end - begin + XK - 1) / XK : 0;

  const int r = threadIdx.x / (XK / 8), own = begin + threadIdx.x % (XK / 8) * 8;
  const bf16* from_x = x + (size_t)(row0 + r) * n1 + own;
  const bf16* from_w = w + (size_t)(column0 + r) * n1 + own;
  bf16* to = memory + r * XPITCH + threadIdx.x % (XK / 8) * 8;
  auto load = [&](int step, int stage) {
    const bool inside = own + step * XK < end;
#pragma unroll
    for (int i = 0; i < XM; i += PASS) {
      const bool here = inside && row0 + r + i < n0;
      copy16(to + stage * XSTAGE + i * XPITCH, here ? from_x + (size_t)i * n1 + step * XK : x, here);
    }
#pragma unroll
    for (int i = 0; i < XN; i += PASS)
      copy16(to + stage * XSTAGE + (XM + i) * XPITCH, inside ? from_w + (size_t)i * n1 + step * XK : w, inside);
  };

#pragma unroll 1
  for (int s = 0; s < XSTAGES - 1; ++s) {
    if (s < steps) load(s, s);
    asm volatile("cp.async.commit_group;");
  }
  // That the others have started must be known before anything is written into their shared memory.
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
  const bool needed = row0 + wm < n0;
  float sum[WM / 16][2][4] = {};
#pragma unroll 1
  for (int step = 0; step < steps; ++step) {
    asm volatile("cp.async.wait_group %0;" ::"n"(XSTAGES - 2) : "memory");
    __syncthreads();
    if (step + XSTAGES - 1 < steps) load(step + XSTAGES - 1, (step + XSTAGES - 1) % XSTAGES);
    asm volatile("cp.async.commit_group;");
    if (!needed) continue;
    const bf16* a = memory + (step % XSTAGES) * XSTAGE;
    const bf16* b = a + XM * XPITCH;
#pragma unroll
    for (int i = 0; i < XK / 16 / SHARES; ++i) {
      const int k = (i * SHARES + share) * 16;
      unsigned ra[WM / 16][4], rb[4];
      fragment(rb, b + (wn + (lane & 7) + ((lane >> 4) << 3)) * XPITCH + k + ((lane >> 3) & 1) * 8);
#pragma unroll
      for (int m = 0; m < WM / 16; ++m) fragment(ra[m], a + (wm + m * 16 + (lane & 15)) * XPITCH + k + (lane >> 4) * 8);
#pragma unroll
      for (int m = 0; m < WM / 16; ++m)
#pragma unroll
        for (int j = 0; j < 2; ++j) multiply(sum[m][j], ra[m], rb[2 * j], rb[2 * j + 1]);
    }
  }
  asm volatile("barrier.cluster.wait.aligned;" ::: "memory");
  if (needed) {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const unsigned local = (unsigned)__cvta_generic_to_shared(
          parts + (((int)rank * SHARES + share) * XM + wm + (lane >> 2)) * 8 + (lane & 3) * 2);
      unsigned remote;
      asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(local), "r"(wn / 8 + j));
#pragma unroll
      for (int i = 0; i < WM / 16; ++i)
#pragma unroll
        for (int h = 0; h < 2; ++h)
          asm volatile("st.shared::cluster.v2.f32 [%0], {%1, %2};" ::"r"(remote + (i * 16 + h * 8) * 32),
                       "f"(sum[i][j][2 * h]), "f"(sum[i][j][2 * h + 1]) : "memory");
    }
  }
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
  for (int i = threadIdx.x; i < XM * 2; i += XTHREADS) {    // four columns of a row
    const int row = row0 + i / 2;
    if (row >= n0) continue;
    float4 total = make_float4(0.f, 0.f, 0.f, 0.f);
#pragma unroll
    for (int p = 0; p < SPLITS * SHARES; ++p) {
      const float4 part = *reinterpret_cast<const float4*>(parts + p * XM * 8 + i * 4);
      total = make_float4(total.x + part.x, total.y + part.y, total.z + part.z, total.w + part.w);
    }
    const __nv_bfloat162 low = __floats2bfloat162_rn(total.x, total.y), high = __floats2bfloat162_rn(total.z, total.w);
    *reinterpret_cast<uint2*>(out + (size_t)row * n2 + column0 + rank * 8 + (i & 1) * 4) =
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
  if (aligned && n0 == 1) {
    const uint4 *x = reinterpret_cast<const uint4*>(input), *w = reinterpret_cast<const uint4*>(weight);
    if (n2 <= 8192 && n1 == 1024) one_row_exact<4><<<(int)n2, 128, 0, stream>>>(x, w, out);
    else if (n2 <= 8192 && n1 == 768) one_row_exact<3><<<(int)n2, 96, 0, stream>>>(x, w, out);
    else one_row<<<(int)std::min<int64_t>(n2, 132 * 16), 128, 0, stream>>>(x, w, out, (int)(n1 / 8), (int)n2);
  } else if (aligned && (reinterpret_cast<uintptr_t>(out) & 7) == 0 && n2 / XN * SPLITS * ((n0 + XM - 1) / XM) <= 192) {
    cudaFuncSetAttribute(split, cudaFuncAttributeMaxDynamicSharedMemorySize, XBYTES);
    cudaLaunchAttribute cluster = {};
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim.x = SPLITS;
    cluster.val.clusterDim.y = cluster.val.clusterDim.z = 1;
    cudaLaunchConfig_t how = {};
    how.gridDim = dim3((unsigned)(n2 / XN * SPLITS), (unsigned)((n0 + XM - 1) / XM));
    how.blockDim = dim3(XTHREADS);
    how.dynamicSmemBytes = XBYTES;
    how.stream = stream;
    how.attrs = &cluster;
    how.numAttrs = 1;
    cudaLaunchKernelEx(&how, split, input, weight, out, (int)n0, (int)n1, (int)n2);
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
