// reads once as its sibling, with 14 chunks of 16 KiB in the ring, sums exchanged by polled words; normalises in place and writes by bulk copies too; reads are evict-first in the L2
namespace {
constexpr int COMPUTE = 16, WARPS = COMPUTE + 2, THREADS = WARPS * 32;
constexpr int STAGES = 14;                                  // chunks in shared memory
constexpr int LAG = 6;                                      // chunks between statistics and normalisation
constexpr int VECTORS = 2;                                  // of 8 elements, a thread and chunk
constexpr int CHUNK = COMPUTE * 32 * VECTORS * 8;           // elements, 16 KiB
constexpr int OWN = VECTORS * 8;                            // elements of a chunk that a thread holds
constexpr long long CHANNEL = v::input_shape[2] * v::input_shape[3];
constexpr int CHANNELS = v::input_shape[1], PER_GROUP = CHANNELS / v::num_groups;
constexpr long long GROUP = CHANNEL * PER_GROUP;
constexpr int GROUPS = v::input_shape[0] * v::num_groups;
constexpr int IN_CHANNEL = CHANNEL / CHUNK, IN_GROUP = GROUP / CHUNK, ALL = IN_GROUP * GROUPS;   // chunks
constexpr int BLOCKS = 132;                                 // one an SM, all there at once; block b has chunks b, b + 132, ...
constexpr int SLOTS = 4;                                    // groups whose sums may be under way in a block
constexpr int SPLITS = 64;                                  // of the path for other pointers
static_assert(CHANNEL % CHUNK == 0 && v::input_shape[0] == 1, "whole chunks, each in one channel; weights by channel");
static_assert(IN_GROUP >= BLOCKS, "each block has a part of each group");
// A chunk is normalised after the block's statistics of the whole of its group, and waits for groups before it only.
static_assert((IN_GROUP + BLOCKS - 1) / BLOCKS <= LAG && LAG + 1 < STAGES, "no deadlock");
constexpr unsigned long long EMPTY = ~0ull;

struct State {
  unsigned long long part[GROUPS][BLOCKS];                  // mean and sum of squares of a block's part, or EMPTY
  double2 sums[GROUPS][SPLITS];
};

struct Shared {
  alignas(128) uint4 data[STAGES][CHUNK / 8];
  alignas(8) unsigned long long full[STAGES], made[STAGES], summed[SLOTS], known[SLOTS];
  float2 part[SLOTS][COMPUTE];
  float2 norm[SLOTS];                                       // mean, 1 / standard deviation
  float weight[CHANNELS], bias[CHANNELS];
};
static_assert(sizeof(Shared) <= 227 * 1024, "shared memory of a block");

__device__ __forceinline__ unsigned address(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }
__device__ __forceinline__ void init(unsigned long long* bar, int count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(address(bar)), "r"(count) : "memory");
}
__device__ __forceinline__ void arrive(unsigned long long* bar) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(address(bar)) : "memory");
}
__device__ __forceinline__ void expect(unsigned long long* bar, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(address(bar)), "r"(bytes) : "memory");
}
__device__ __forceinline__ void wait(unsigned long long* bar, int parity) {
  asm volatile(
      "{\n.reg .pred p;\nAGAIN%=:\nmbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n@p bra DONE%=;\nbra AGAIN%=;\nDONE%=:\n}"
      ::"r"(address(bar)), "r"(parity) : "memory");
}
__device__ __forceinline__ void bulk(void* to, const void* from, int bytes, unsigned long long* bar,
                                     unsigned long long policy) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::"r"(
          address(to)), "l"(from), "r"(bytes), "r"(address(bar)), "l"(policy) : "memory");
}
__device__ __forceinline__ void bulk_out(void* to, const void* from, int bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(address(from)), "r"(bytes)
               : "memory");
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
// One word holds both numbers and that they are there: nothing else is ordered by it.
__device__ __forceinline__ void put(unsigned long long* p, unsigned long long word) {
  asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(p), "l"(word) : "memory");
}
__device__ __forceinline__ unsigned long long get(const unsigned long long* p) {
  unsigned long long word;
  asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(word) : "l"(p) : "memory");
  return word;
}

// How many of the group's chunks a block has.
__device__ __forceinline__ int chunks_of(int group, int block) {
  return ((group + 1) * IN_GROUP - block + BLOCKS - 1) / BLOCKS - (group * IN_GROUP - block + BLOCKS - 1) / BLOCKS;
}

__device__ __forceinline__ void unpack(uint4 q, float* f) {
  const unsigned w[4] = {q.x, q.y, q.z, q.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    f[2 * i] = __uint_as_float(w[i] << 16);
    f[2 * i + 1] = __uint_as_float(w[i] & 0xffff0000u);
  }
}

__device__ __forceinline__ double warp_sum(double x) {
#pragma unroll
  for (int o = 16; o; o >>= 1) x += __shfl_xor_sync(~0u, x, o);
  return x;
}

__global__ void __launch_bounds__(THREADS, 1)
group_norm(const uint4* __restrict__ in, const __nv_bfloat16* __restrict__ w, const __nv_bfloat16* __restrict__ b,
           uint4* __restrict__ out, State* state) {
  extern __shared__ __align__(128) unsigned char memory[];
  Shared& s = *reinterpret_cast<Shared*>(memory);
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, block = blockIdx.x;
  const int count = (ALL - block + BLOCKS - 1) / BLOCKS;    // chunks of this block
  if (threadIdx.x == 0) {
    for (int i = 0; i < STAGES; ++i) {
      init(&s.full[i], 1);
      init(&s.made[i], COMPUTE);
    }
    for (int i = 0; i < SLOTS; ++i) {
      init(&s.summed[i], COMPUTE);
      init(&s.known[i], 1);
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  for (int i = threadIdx.x; i < CHANNELS; i += THREADS) {
    s.weight[i] = __bfloat162float(w[i]);
    s.bias[i] = __bfloat162float(b[i]);
  }
  __syncthreads();

  if (warp == COMPUTE) {                                    // fills the ring and empties it
    if (lane != 0) return;
    unsigned long long policy;
    asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    for (int k = 0; k < count + STAGES - 1; ++k) {
      // Chunk `filled` goes where `filled` - STAGES was, which is written once all stores but the latest one have been read.
      const int filled = k, written = k - (STAGES - 1);
      if (written >= 0) {
        const int stage = written % STAGES;
        wait(&s.made[stage], (written / STAGES) & 1);
        bulk_out(out + (long long)(block + written * BLOCKS) * (CHUNK / 8), s.data[stage], CHUNK * 2);
        asm volatile("cp.async.bulk.wait_group.read 1;" ::: "memory");
      }
      if (filled < count) {
        const int stage = filled % STAGES;
        expect(&s.full[stage], CHUNK * 2);
        bulk(s.data[stage], in + (long long)(block + filled * BLOCKS) * (CHUNK / 8), CHUNK * 2, &s.full[stage], policy);
      }
    }
    asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
    return;
  }
  if (warp == COMPUTE + 1) {                                // exchanges the sums of each group with the other blocks
    for (int group = 0; group < GROUPS; ++group) {
      const int slot = group % SLOTS;
      wait(&s.summed[slot], (group / SLOTS) & 1);
      float2 p = s.part[slot][lane % COMPUTE];
      float n = (float)(chunks_of(group, block) * OWN * 32);
#pragma unroll
      for (int o = 1; o < COMPUTE; o <<= 1) {
        const float mean = __shfl_xor_sync(~0u, p.x, o), square = __shfl_xor_sync(~0u, p.y, o);
        const float d = mean - p.x;
        p = make_float2(0.5f * p.x + 0.5f * mean, p.y + square + d * d * (0.5f * n));
        n *= 2.f;
      }
      if (lane == 0) {
        unsigned long long word = (unsigned long long)__float_as_uint(p.x) << 32 | __float_as_uint(p.y);
        if (word == EMPTY) word = 0x7fffffff7fffffffull;    // not a number either
        put(&state->part[group][block], word);
      }
      constexpr int EACH = (BLOCKS + 31) / 32;
      unsigned long long words[EACH];
      double counts[EACH];                                  // of chunks
#pragma unroll
      for (int i = 0; i < EACH; ++i) counts[i] = i * 32 + lane < BLOCKS ? (double)chunks_of(group, i * 32 + lane) : 0.0;
      bool waiting = true;
      while (waiting) {                                     // all loads are under way at once
#pragma unroll
        for (int i = 0; i < EACH; ++i) words[i] = get(&state->part[group][min(i * 32 + lane, BLOCKS - 1)]);
        waiting = false;
#pragma unroll
        for (int i = 0; i < EACH; ++i) waiting |= words[i] == EMPTY;
      }
      __syncwarp();
      double total = 0.0, square = 0.0;
#pragma unroll
      for (int i = 0; i < EACH; ++i)
        if (i * 32 + lane < BLOCKS) total += (double)__uint_as_float((unsigned)(words[i] >> 32)) * counts[i];
      const double mean = warp_sum(total) / IN_GROUP;
#pragma unroll
      for (int i = 0; i < EACH; ++i)
        if (i * 32 + lane < BLOCKS) {
          const double d = (double)__uint_as_float((unsigned)(words[i] >> 32)) - mean;
          square += (double)__uint_as_float((unsigned)words[i]) + d * d * (counts[i] * CHUNK);
        }
      square = warp_sum(square);
      if (lane == 0) {
        s.norm[slot] = make_float2((float)mean, (float)(1.0 / sqrt(square / GROUP + v::eps)));
        arrive(&s.known[slot]);
      }
      __syncwarp();
    }
    return;
  }

  float mean = 0.f, square = 0.f;                           // of this thread's part of the group so far
  unsigned chunks = 0, have = ~0u, full = 0, full_phase = 0, used = 0;
  float2 norm = make_float2(0.f, 0.f);
  for (int step = 0; step < count + LAG; ++step) {
    if (step < count) {                                     // statistics
      const unsigned chunk = block + step * BLOCKS, group = chunk / IN_GROUP;
      const uint4* data = s.data[full] + threadIdx.x;
      wait(&s.full[full], full_phase);
      if (++full == STAGES) {
        full = 0;
        full_phase ^= 1;
      }
      float x[OWN];
#pragma unroll
      for (int i = 0; i < VECTORS; ++i) unpack(data[i * COMPUTE * 32], x + 8 * i);
      float sums[4] = {}, squares[4] = {};
#pragma unroll
      for (int i = 0; i < OWN; ++i) sums[i & 3] += x[i];
      const float m = ((sums[0] + sums[1]) + (sums[2] + sums[3])) * (1.f / OWN);
#pragma unroll
      for (int i = 0; i < OWN; ++i) squares[i & 3] = fmaf(x[i] - m, x[i] - m, squares[i & 3]);
      const float q = (squares[0] + squares[1]) + (squares[2] + squares[3]);
      if (chunks == 0) {
        mean = m;
        square = q;
      } else {
        const float d = m - mean, part = __frcp_rn((float)(chunks + 1));
        mean = fmaf(d, part, mean);
        square += q + d * d * ((float)(OWN * chunks) * part);
      }
      ++chunks;
      if ((chunk + BLOCKS) / IN_GROUP != group) {           // the last one of the group
        float n = (float)(OWN * chunks);
#pragma unroll
        for (int o = 16; o; o >>= 1) {
          const float other = __shfl_xor_sync(~0u, mean, o), more = __shfl_xor_sync(~0u, square, o);
          const float d = other - mean;
          mean = 0.5f * mean + 0.5f * other;
          square = square + more + d * d * (0.5f * n);
          n *= 2.f;
        }
        if (lane == 0) {
          s.part[group % SLOTS][warp] = make_float2(mean, square);
          arrive(&s.summed[group % SLOTS]);
        }
        __syncwarp();
        chunks = 0;
      }
    }
    if (step >= LAG) {                                      // normalisation
      const unsigned chunk = block + (step - LAG) * BLOCKS, group = chunk / IN_GROUP;
      uint4* data = s.data[used] + threadIdx.x;
      if (group != have) {
        have = group;
        wait(&s.known[group % SLOTS], (group / SLOTS) & 1);
        norm = s.norm[group % SLOTS];
      }
      const unsigned channel = chunk / IN_CHANNEL;
      const float scale = norm.y * s.weight[channel], shift = s.bias[channel];
#pragma unroll
      for (int i = 0; i < VECTORS; ++i) {
        float f[8];
        unpack(data[i * COMPUTE * 32], f);
        unsigned r[4];
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const __nv_bfloat162 p = __floats2bfloat162_rn(fmaf(f[2 * j] - norm.x, scale, shift),
                                                         fmaf(f[2 * j + 1] - norm.x, scale, shift));
          r[j] = *reinterpret_cast<const unsigned*>(&p);
        }
        data[i * COMPUTE * 32] = make_uint4(r[0], r[1], r[2], r[3]);
      }
      asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
      __syncwarp();
      if (lane == 0) arrive(&s.made[used]);
      if (++used == STAGES) used = 0;
    }
  }
}

// Any alignment, any GPU: two kernels, element by element.
__global__ void __launch_bounds__(256) any_sums(const __nv_bfloat16* __restrict__ in, State* state) {
  __shared__ double2 parts[8];
  constexpr long long PART = GROUP / SPLITS;
  static_assert(GROUP % SPLITS == 0, "equal parts");
  const __nv_bfloat16* from = in + blockIdx.y * GROUP + blockIdx.x * PART;
  double total = 0.0, square = 0.0;
  for (long long i = threadIdx.x; i < PART; i += 256) {
    const double x = (double)__bfloat162float(from[i]);
    total += x;
    square = fma(x, x, square);
  }
  total = warp_sum(total);
  square = warp_sum(square);
  if ((threadIdx.x & 31) == 0) parts[threadIdx.x >> 5] = make_double2(total, square);
  __syncthreads();
  if (threadIdx.x == 0) {
    for (int i = 1; i < 8; ++i) {
      total += parts[i].x;
      square += parts[i].y;
    }
    state->sums[blockIdx.y][blockIdx.x] = make_double2(total, square);
  }
}

__global__ void __launch_bounds__(256) any_norm(const __nv_bfloat16* __restrict__ in, const __nv_bfloat16* __restrict__ w,
                                                const __nv_bfloat16* __restrict__ b, __nv_bfloat16* __restrict__ out,
                                                const State* state) {
  constexpr long long PART = GROUP / SPLITS;
  double total = 0.0, square = 0.0;
  for (int i = threadIdx.x & 31; i < SPLITS; i += 32) {
    total += state->sums[blockIdx.y][i].x;
    square += state->sums[blockIdx.y][i].y;
  }
  const double mean = warp_sum(total) / GROUP, spread = warp_sum(square) / GROUP - mean * mean;
  const float center = (float)mean, rstd = (float)(1.0 / sqrt((spread < 0.0 ? 0.0 : spread) + v::eps));
  for (long long i = threadIdx.x; i < PART; i += 256) {
    const long long at = blockIdx.y * GROUP + blockIdx.x * PART + i;
    const int channel = (int)(at / CHANNEL) % CHANNELS;
    out[at] = __float2bfloat16(fmaf(__bfloat162float(in[at]) - center, rstd * __bfloat162float(w[channel]),
                                    __bfloat162float(b[channel])));
  }
}
}  // namespace

extern "C" size_t workspace_bytes(void) { return sizeof(State); }

extern "C" int launch(const __nv_bfloat16* input, const __nv_bfloat16* weight, const __nv_bfloat16* bias,
                      __nv_bfloat16* out, void* workspace, cudaStream_t stream) {
  State* state = static_cast<State*>(workspace);
  int device = 0, sms = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, device);
  if (((reinterpret_cast<uintptr_t>(input) | reinterpret_cast<uintptr_t>(out)) & 15) == 0 && sms >= BLOCKS) {
    cudaMemsetAsync(state->part, 0xff, sizeof(state->part), stream);
    cudaFuncSetAttribute(group_norm, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)sizeof(Shared));
    // The blocks wait for each other: a cooperative launch has all of them there, or none.
    cudaLaunchAttribute together = {};
    together.id = cudaLaunchAttributeCooperative;
    together.val.cooperative = 1;
    cudaLaunchConfig_t how = {};
    how.gridDim = dim3(BLOCKS);
    how.blockDim = dim3(THREADS);
    how.dynamicSmemBytes = sizeof(Shared);
    how.stream = stream;
    how.attrs = &together;
    how.numAttrs = 1;
    cudaLaunchKernelEx(&how, group_norm, reinterpret_cast<const uint4*>(input), weight, bias, reinterpret_cast<uint4*>(out),
                       state);
  } else {
    any_sums<<<dim3(SPLITS, GROUPS), 256, 0, stream>>>(input, state);
    any_norm<<<dim3(SPLITS, GROUPS), 256, 0, stream>>>(input, weight, bias, out, state);
  }
  return cudaGetLastError();
}
