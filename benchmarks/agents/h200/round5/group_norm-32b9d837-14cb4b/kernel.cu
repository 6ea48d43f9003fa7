// reads once; own warps for statistics and for normalising (these park a group in registers, so the ring is free early), 128 equal blocks, words polled again only where missing
namespace {
constexpr int STAT = 8, NORM = 8;                           // warps
constexpr int WARPS = STAT + NORM + 2, THREADS = WARPS * 32;
constexpr int STAGES = 14;                                  // chunks in shared memory
constexpr int VECTORS = 4;                                  // of 8 elements, a thread and chunk
constexpr int CHUNK = STAT * 32 * VECTORS * 8;              // elements, 16 KiB
constexpr int OWN = VECTORS * 8;                            // elements of a chunk that a thread adds up
constexpr long long CHANNEL = v::input_shape[2] * v::input_shape[3];
constexpr int CHANNELS = v::input_shape[1], PER_GROUP = CHANNELS / v::num_groups;
constexpr long long GROUP = CHANNEL * PER_GROUP;
constexpr int GROUPS = v::input_shape[0] * v::num_groups;
constexpr int BLOCKS = 128;                                 // one an SM, all there at once; each has an equal part of each group
constexpr int PART = GROUP / BLOCKS, CHUNKS = PART / CHUNK; // elements and chunks of that part
constexpr int IN_CHANNEL = CHANNEL / PART;                  // blocks
constexpr int SLOTS = 4;                                    // groups whose sums may be under way in a block
constexpr int SPLITS = 64;                                  // of the path for other pointers
static_assert(CHANNEL % PART == 0 && PART % CHUNK == 0 && v::input_shape[0] == 1, "a part is whole chunks in one channel");
static_assert(CHUNKS == 4 && STAT == NORM, "sums are merged in pairs");
// Before a chunk of group g + SLOTS comes, one of group g + 1 has left the ring, so that all warps are done with group g.
static_assert(STAGES < SLOTS * CHUNKS, "slots are free when they are used again");
// A chunk leaves the ring once the groups before its own are known: no block waits for a group that another cannot load.
static_assert(STAGES >= 2 * CHUNKS, "no deadlock");
constexpr unsigned long long EMPTY = ~0ull;

struct State {
  unsigned long long part[GROUPS][BLOCKS];                  // mean and sum of squares of a block's part, or EMPTY
  double2 sums[GROUPS][SPLITS];
};

struct Shared {
  alignas(128) uint4 data[STAGES][CHUNK / 8];
  alignas(8) unsigned long long full[STAGES], empty[STAGES], summed[SLOTS], known[SLOTS];
  float2 part[SLOTS][STAT];
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
// One word holds both numbers and that they are there: nothing else is ordered by it.
__device__ __forceinline__ void put(unsigned long long* p, unsigned long long word) {
  asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(p), "l"(word) : "memory");
}
// Reads the word again where it is not there yet: the last blocks are waited for with few sectors a round.
__device__ __forceinline__ void get(unsigned long long& word, const unsigned long long* p) {
  asm volatile("{\n.reg .pred p;\nsetp.eq.u64 p, %0, -1;\n@p ld.relaxed.gpu.global.u64 %0, [%1];\n}" : "+l"(word) : "l"(p) : "memory");
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

// Mean and sum of squared deviations of two sets of n elements each, to the first.
__device__ __forceinline__ void merge(float& mean, float& square, float other, float more, float n) {
  const float d = other - mean;
  mean = 0.5f * mean + 0.5f * other;
  square = square + more + d * d * (0.5f * n);
}

__global__ void __launch_bounds__(THREADS, 1)
group_norm(const uint4* __restrict__ in, const __nv_bfloat16* __restrict__ w, const __nv_bfloat16* __restrict__ b,
           uint4* __restrict__ out, State* state) {
  extern __shared__ __align__(128) unsigned char memory[];
  Shared& s = *reinterpret_cast<Shared*>(memory);
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, block = blockIdx.x;
  if (threadIdx.x == 0) {
    for (int i = 0; i < STAGES; ++i) {
      init(&s.full[i], 1);
      init(&s.empty[i], STAT + NORM);
    }
    for (int i = 0; i < SLOTS; ++i) {
      init(&s.summed[i], STAT);
      init(&s.known[i], 1);
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  for (int i = threadIdx.x; i < CHANNELS; i += THREADS) {
    s.weight[i] = __bfloat162float(w[i]);
    s.bias[i] = __bfloat162float(b[i]);
  }
  __syncthreads();

  if (warp == STAT + NORM) {                                // fills the ring
    if (lane != 0) return;
    unsigned long long policy;
    asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    int stage = 0, phase = 1;                               // the first round waits for nothing
#pragma unroll 1
    for (int k = 0; k < GROUPS * CHUNKS; ++k) {
      const size_t at = (size_t)(k / CHUNKS) * (GROUP / 8) + (size_t)block * (PART / 8) + k % CHUNKS * (CHUNK / 8);
      wait(&s.empty[stage], phase);
      expect(&s.full[stage], CHUNK * 2);
      bulk(s.data[stage], in + at, CHUNK * 2, &s.full[stage], policy);
      if (++stage == STAGES) {
        stage = 0;
        phase ^= 1;
      }
    }
    return;
  }
  if (warp == STAT + NORM + 1) {                            // exchanges the sums of each group with the other blocks
#pragma unroll 1
    for (int group = 0; group < GROUPS; ++group) {
      const int slot = group % SLOTS;
      wait(&s.summed[slot], (group / SLOTS) & 1);
      float2 p = s.part[slot][lane % STAT];
      float n = (float)(PART / STAT);
#pragma unroll
      for (int o = 1; o < STAT; o <<= 1) {
        merge(p.x, p.y, __shfl_xor_sync(~0u, p.x, o), __shfl_xor_sync(~0u, p.y, o), n);
        n *= 2.f;
      }
      if (lane == 0) {
        unsigned long long word = (unsigned long long)__float_as_uint(p.x) << 32 | __float_as_uint(p.y);
        if (word == EMPTY) word = 0x7fffffff7fffffffull;    // not a number either
        put(&state->part[group][block], word);
      }
      __syncwarp();
      constexpr int EACH = BLOCKS / 32;
      unsigned long long words[EACH];
#pragma unroll
      for (int i = 0; i < EACH; ++i) words[i] = EMPTY;
      bool waiting = true;
      while (waiting) {                                     // all loads are under way at once
#pragma unroll
        for (int i = 0; i < EACH; ++i) get(words[i], &state->part[group][i * 32 + lane]);
        bool missing = false;
#pragma unroll
        for (int i = 0; i < EACH; ++i) missing |= words[i] == EMPTY;
        waiting = __any_sync(~0u, missing);
      }
      // Sums of distances from the mean of the first part, which is not far from the group's: exact enough in float64.
      const double first = (double)__shfl_sync(~0u, __uint_as_float((unsigned)(words[0] >> 32)), 0);
      double total = 0.0, square = 0.0;
#pragma unroll
      for (int i = 0; i < EACH; ++i) {
        const double d = (double)__uint_as_float((unsigned)(words[i] >> 32)) - first;
        total += d;
        square += (double)__uint_as_float((unsigned)words[i]) + d * d * PART;
      }
#pragma unroll
      for (int o = 16; o; o >>= 1) {
        total += __shfl_xor_sync(~0u, total, o);
        square += __shfl_xor_sync(~0u, square, o);
      }
      const double offset = total / BLOCKS;
      square -= total * offset * PART;
      const float spread = (float)((square < 0.0 ? 0.0 : square) / GROUP + v::eps);
      if (lane == 0) {
        s.norm[slot] = make_float2((float)(first + offset), 1.f / sqrtf(spread));
        arrive(&s.known[slot]);
      }
      __syncwarp();
    }
    return;
  }

  int stage = 0, phase = 0;
  auto next = [&]() {
    if (++stage == STAGES) {
      stage = 0;
      phase ^= 1;
    }
  };
  if (warp < STAT) {                                        // statistics
#pragma unroll 1
    for (int group = 0; group < GROUPS; ++group) {
      float mean[CHUNKS], square[CHUNKS];
#pragma unroll
      for (int j = 0; j < CHUNKS; ++j) {
        const uint4* data = s.data[stage] + threadIdx.x;
        wait(&s.full[stage], phase);
        float x[OWN];
#pragma unroll
        for (int i = 0; i < VECTORS; ++i) unpack(data[i * STAT * 32], x + 8 * i);
        __syncwarp();
        if (lane == 0) arrive(&s.empty[stage]);
        next();
        float sums[4] = {}, squares[4] = {};
#pragma unroll
        for (int i = 0; i < OWN; ++i) sums[i & 3] = fmaf(x[i], 1.f / OWN, sums[i & 3]);  // cannot overflow
        const float m = (sums[0] + sums[1]) + (sums[2] + sums[3]);
#pragma unroll
        for (int i = 0; i < OWN; ++i) squares[i & 3] = fmaf(x[i] - m, x[i] - m, squares[i & 3]);
        mean[j] = m;
        square[j] = (squares[0] + squares[1]) + (squares[2] + squares[3]);
      }
      merge(mean[0], square[0], mean[1], square[1], (float)OWN);
      merge(mean[2], square[2], mean[3], square[3], (float)OWN);
      merge(mean[0], square[0], mean[2], square[2], (float)(2 * OWN));
      float n = (float)(CHUNKS * OWN);
#pragma unroll
      for (int o = 16; o; o >>= 1) {
        merge(mean[0], square[0], __shfl_xor_sync(~0u, mean[0], o), __shfl_xor_sync(~0u, square[0], o), n);
        n *= 2.f;
      }
      if (lane == 0) {
        s.part[group % SLOTS][warp] = make_float2(mean[0], square[0]);
        arrive(&s.summed[group % SLOTS]);
      }
      __syncwarp();
    }
    return;
  }

  const int thread = threadIdx.x - STAT * 32;               // normalisation
  uint4* to = out + (size_t)block * (PART / 8) + thread;
#pragma unroll 1
  for (int group = 0; group < GROUPS; ++group) {
    uint4 q[CHUNKS][VECTORS];
#pragma unroll
    for (int j = 0; j < CHUNKS; ++j) {
      wait(&s.full[stage], phase);
#pragma unroll
      for (int i = 0; i < VECTORS; ++i) q[j][i] = s.data[stage][i * NORM * 32 + thread];
      __syncwarp();
      if (lane == 0) arrive(&s.empty[stage]);
      next();
    }
    const int channel = group * PER_GROUP + block / IN_CHANNEL;
    wait(&s.known[group % SLOTS], (group / SLOTS) & 1);
    const float2 norm = s.norm[group % SLOTS];
    const float scale = norm.y * s.weight[channel], shift = s.bias[channel];
#pragma unroll
    for (int j = 0; j < CHUNKS; ++j)
#pragma unroll
      for (int i = 0; i < VECTORS; ++i) {
        float f[8];
        unpack(q[j][i], f);
        unsigned r[4];
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const __nv_bfloat162 p = __floats2bfloat162_rn(fmaf(f[2 * e] - norm.x, scale, shift),
                                                         fmaf(f[2 * e + 1] - norm.x, scale, shift));
          r[e] = *reinterpret_cast<const unsigned*>(&p);
        }
        __stcs(to + j * (CHUNK / 8) + i * NORM * 32, make_uint4(r[0], r[1], r[2], r[3]));
      }
    to += GROUP / 8;
  }
}

// Any alignment, any GPU: two kernels, element by element.
__global__ void __launch_bounds__(256) any_sums(const __nv_bfloat16* __restrict__ in, State* state) {
  __shared__ double2 parts[8];
  constexpr long long SPLIT = GROUP / SPLITS;
  static_assert(GROUP % SPLITS == 0, "equal parts");
  const __nv_bfloat16* from = in + blockIdx.y * GROUP + blockIdx.x * SPLIT;
  double total = 0.0, square = 0.0;
  for (long long i = threadIdx.x; i < SPLIT; i += 256) {
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
  constexpr long long SPLIT = GROUP / SPLITS;
  double total = 0.0, square = 0.0;
  for (int i = threadIdx.x & 31; i < SPLITS; i += 32) {
    total += state->sums[blockIdx.y][i].x;
    square += state->sums[blockIdx.y][i].y;
  }
  const double mean = warp_sum(total) / GROUP, spread = warp_sum(square) / GROUP - mean * mean;
  const float center = (float)mean, rstd = (float)(1.0 / sqrt((spread < 0.0 ? 0.0 : spread) + v::eps));
  for (long long i = threadIdx.x; i < SPLIT; i += 256) {
    const long long at = blockIdx.y * GROUP + blockIdx.x * SPLIT + i;
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
