// warp-specialised: one warp fills a ring by bulk copies in ticket order, eight compute, one books statistics, one waits for them
namespace {
constexpr int COMPUTE = 8, WARPS = COMPUTE + 3, THREADS = WARPS * 32;
constexpr int STAGES = 3, BLOCKS_PER_SM = 2;
constexpr int CHUNK = 16384;                                // elements of a task, 32 KiB
constexpr int VECTORS = CHUNK / 8 / (COMPUTE * 32);
constexpr long long CHANNEL = v::input_shape[2] * v::input_shape[3];
constexpr int PER_GROUP = v::input_shape[1] / v::num_groups;
constexpr long long GROUP = CHANNEL * PER_GROUP;
constexpr int GROUPS = v::input_shape[0] * v::num_groups;
constexpr int TASKS = GROUP / CHUNK;                        // of a group and phase
constexpr int AHEAD = 1;
static_assert(GROUP % CHUNK == 0 && CHANNEL % CHUNK == 0, "whole chunks, each in one channel");

struct State {
  unsigned ticket;
  unsigned done[GROUPS];
  unsigned ready[GROUPS];
  float mean[GROUPS], rstd[GROUPS];
  float2 part[GROUPS][TASKS];
};

struct Shared {
  alignas(128) uint4 data[STAGES][CHUNK / 8];
  alignas(8) unsigned long long full[STAGES], empty[STAGES], summed[STAGES], known[STAGES];
  int task[STAGES];
  float2 part[STAGES][COMPUTE];
  float2 norm[STAGES];                                      // mean, 1 / standard deviation
};

__device__ __forceinline__ unsigned address(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }
__device__ __forceinline__ void init(unsigned long long* bar, int count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(address(bar)), "r"(count));
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
__device__ __forceinline__ void bulk(void* to, const void* from, int bytes, unsigned long long* bar) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(address(to)),
               "l"(from), "r"(bytes), "r"(address(bar)) : "memory");
}

// Tasks are numbered S(0) .. S(AHEAD), N(0), S(AHEAD + 1), N(1), ...: statistics, and normalisation a little later.
struct Task { bool statistics; int group, chunk; };
__device__ __forceinline__ Task task_of(int t) {
  const int step = t / TASKS, chunk = t % TASKS;
  if (step <= AHEAD) return {true, step, chunk};
  const int k = step - AHEAD - 1, pairs = 2 * (GROUPS - AHEAD - 1);
  if (k < pairs) return {(k & 1) != 0, (k & 1) ? AHEAD + 1 + k / 2 : k / 2, chunk};
  return {false, GROUPS - AHEAD - 1 + (k - pairs), chunk};
}
constexpr int ALL = 2 * GROUPS * TASKS;

__device__ __forceinline__ void unpack(uint4 q, float* f) {
  const unsigned w[4] = {q.x, q.y, q.z, q.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    f[2 * i] = __uint_as_float(w[i] << 16);
    f[2 * i + 1] = __uint_as_float(w[i] & 0xffff0000u);
  }
}

__global__ void __launch_bounds__(THREADS, BLOCKS_PER_SM)
group_norm(const uint4* __restrict__ in, const __nv_bfloat16* __restrict__ w, const __nv_bfloat16* __restrict__ b,
           uint4* __restrict__ out, State* state) {
  extern __shared__ unsigned char memory[];
  Shared& s = *reinterpret_cast<Shared*>(memory);
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
  if (threadIdx.x == 0) {
    for (int i = 0; i < STAGES; ++i) {
      init(&s.full[i], 1);
      init(&s.empty[i], COMPUTE + 2);
      init(&s.summed[i], COMPUTE);
      init(&s.known[i], 1);
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  __syncthreads();

  if (warp == COMPUTE) {                                    // fills the ring
    if (lane != 0) return;
    unsigned next = atomicAdd(&state->ticket, 1u);
    for (int n = 0;; ++n) {
      const int stage = n % STAGES;
      if (n >= STAGES) wait(&s.empty[stage], (n / STAGES - 1) & 1);
      const int t = next < ALL ? (int)next : -1;
      s.task[stage] = t;
      if (t < 0) { arrive(&s.full[stage]); return; }
      const Task task = task_of(t);
      expect(&s.full[stage], CHUNK * 2);
      bulk(s.data[stage], in + ((long long)task.group * GROUP + (long long)task.chunk * CHUNK) / 8, CHUNK * 2, &s.full[stage]);
      next = atomicAdd(&state->ticket, 1u);
    }
  }
  if (warp == COMPUTE + 1) {                                // books the statistics
    for (int n = 0;; ++n) {
      const int stage = n % STAGES, parity = (n / STAGES) & 1;
      wait(&s.full[stage], parity);
      const int t = s.task[stage];
      if (t < 0) return;
      const Task task = task_of(t);
      wait(&s.summed[stage], parity);
      float2 p = make_float2(0.f, 0.f);
      if (task.statistics) p = s.part[stage][lane % COMPUTE];
      __syncwarp();
      if (lane == 0) arrive(&s.empty[stage]);
      if (!task.statistics) continue;
      float count = CHUNK / COMPUTE;
      for (int o = 1; o < COMPUTE; o <<= 1) {
        const float mean = __shfl_xor_sync(~0u, p.x, o), square = __shfl_xor_sync(~0u, p.y, o);
        const float d = mean - p.x;
        p = make_float2(0.5f * (p.x + mean), p.y + square + d * d * (0.5f * count));
        count *= 2.f;
      }
      unsigned before = 0;
      if (lane == 0) {
        state->part[task.group][task.chunk] = p;
        __threadfence();
        before = atomicAdd(&state->done[task.group], 1u);
      }
      before = __shfl_sync(~0u, before, 0);
      if (before != TASKS - 1) continue;
      __threadfence();
      double total = 0.0, square = 0.0;
      for (int i = lane; i < TASKS; i += 32) total += (double)__ldcg(&state->part[task.group][i].x);
      for (int o = 16; o; o >>= 1) total += __shfl_xor_sync(~0u, total, o);
      const double mean = total / TASKS;
      for (int i = lane; i < TASKS; i += 32) {
        const double d = (double)__ldcg(&state->part[task.group][i].x) - mean;
        square += (double)__ldcg(&state->part[task.group][i].y) + d * d * CHUNK;
      }
      for (int o = 16; o; o >>= 1) square += __shfl_xor_sync(~0u, square, o);
      if (lane == 0) {
        state->mean[task.group] = (float)mean;
        state->rstd[task.group] = (float)(1.0 / sqrt(square / GROUP + v::eps));
        __threadfence();
        atomicExch(&state->ready[task.group], 1u);
      }
    }
  }
  if (warp == COMPUTE + 2) {                                // waits for the statistics, ahead of the normalisation
    if (lane != 0) return;
    int have = -1;
    float2 norm = make_float2(0.f, 0.f);
    for (int n = 0;; ++n) {
      const int stage = n % STAGES, parity = (n / STAGES) & 1;
      wait(&s.full[stage], parity);
      const int t = s.task[stage];
      if (t < 0) return;
      const Task task = task_of(t);
      if (!task.statistics) {
        if (have != task.group) {
          while (atomicAdd(&state->ready[task.group], 0u) == 0u) __nanosleep(64);
          __threadfence();
          have = task.group;
          norm = make_float2(__ldcg(&state->mean[have]), __ldcg(&state->rstd[have]));
        }
        s.norm[stage] = norm;
      }
      arrive(&s.known[stage]);
      arrive(&s.empty[stage]);
    }
  }
  for (int n = 0;; ++n) {                                   // computes
    const int stage = n % STAGES, parity = (n / STAGES) & 1;
    wait(&s.full[stage], parity);
    const int t = s.task[stage];
    if (t < 0) return;
    const Task task = task_of(t);
    const uint4* data = s.data[stage] + threadIdx.x;
    if (task.statistics) {
      float x[VECTORS * 8], sum = 0.f, square = 0.f;
#pragma unroll
      for (int i = 0; i < VECTORS; ++i) unpack(data[i * COMPUTE * 32], x + 8 * i);
#pragma unroll
      for (int i = 0; i < VECTORS * 8; ++i) sum += x[i];
      float mean = sum * (1.f / (VECTORS * 8));
#pragma unroll
      for (int i = 0; i < VECTORS * 8; ++i) square = fmaf(x[i] - mean, x[i] - mean, square);
      float count = VECTORS * 8;
#pragma unroll
      for (int o = 16; o; o >>= 1) {
        const float m = __shfl_xor_sync(~0u, mean, o), q = __shfl_xor_sync(~0u, square, o);
        const float d = m - mean;
        mean = 0.5f * (mean + m);
        square = square + q + d * d * (0.5f * count);
        count *= 2.f;
      }
      if (lane == 0) {
        s.part[stage][warp] = make_float2(mean, square);
        arrive(&s.summed[stage]);
        arrive(&s.empty[stage]);
      }
    } else {
      uint4 q[VECTORS];
#pragma unroll
      for (int i = 0; i < VECTORS; ++i) q[i] = data[i * COMPUTE * 32];
      wait(&s.known[stage], parity);
      const float2 norm = s.norm[stage];
      __syncwarp();
      if (lane == 0) {
        arrive(&s.summed[stage]);
        arrive(&s.empty[stage]);
      }
      const int channel = (task.group % v::num_groups) * PER_GROUP + (int)((long long)task.chunk * CHUNK / CHANNEL);
      const float scale = norm.y * __bfloat162float(w[channel]), shift = __bfloat162float(b[channel]);
      uint4* to = out + ((long long)task.group * GROUP + (long long)task.chunk * CHUNK) / 8 + threadIdx.x;
#pragma unroll
      for (int i = 0; i < VECTORS; ++i) {
        float f[8];
        unpack(q[i], f);
        unsigned r[4];
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const __nv_bfloat162 p =
              __floats2bfloat162_rn((f[2 * j] - norm.x) * scale + shift, (f[2 * j + 1] - norm.x) * scale + shift);
          r[j] = *reinterpret_cast<const unsigned*>(&p);
        }
        __stcs(to + i * COMPUTE * 32, make_uint4(r[0], r[1], r[2], r[3]));
      }
    }
  }
}
}  // namespace

extern "C" size_t workspace_bytes(void) { return sizeof(State); }

extern "C" int launch(const __nv_bfloat16* input, const __nv_bfloat16* weight, const __nv_bfloat16* bias,
                      __nv_bfloat16* out, void* workspace, cudaStream_t stream) {
  State* state = static_cast<State*>(workspace);
  cudaMemsetAsync(state, 0, offsetof(State, mean), stream);
  cudaFuncSetAttribute(group_norm, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)sizeof(Shared));
  group_norm<<<132 * BLOCKS_PER_SM, THREADS, sizeof(Shared), stream>>>(
      reinterpret_cast<const uint4*>(input), weight, bias, reinterpret_cast<uint4*>(out), state);
  return cudaGetLastError();
}
