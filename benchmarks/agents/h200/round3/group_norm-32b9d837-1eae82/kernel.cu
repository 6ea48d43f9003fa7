// warp-specialised, one block an SM with a short ring; a block adds up all its tasks of a group before it books them
namespace {
constexpr int COMPUTE = 16, WARPS = COMPUTE + 3, THREADS = WARPS * 32;
constexpr int STAGES = 5, BLOCKS = 132;
constexpr int CHUNK = 8192;                                 // elements of a task, 16 KiB
constexpr int VECTORS = CHUNK / 8 / (COMPUTE * 32), VALUES = VECTORS * 8;
constexpr long long CHANNEL = v::input_shape[2] * v::input_shape[3];
constexpr int PER_GROUP = v::input_shape[1] / v::num_groups;
constexpr long long GROUP = CHANNEL * PER_GROUP;
constexpr int GROUPS = v::input_shape[0] * v::num_groups;
constexpr int TASKS = GROUP / CHUNK;                        // of a group and phase
constexpr int AHEAD = 1;
static_assert(GROUP % CHUNK == 0 && CHANNEL % CHUNK == 0, "whole chunks, each in one channel");

struct State {
  unsigned ticket;
  unsigned done[GROUPS];                                    // tasks that are booked
  unsigned ready[GROUPS];
  float mean[GROUPS], rstd[GROUPS];
  float4 part[GROUPS][BLOCKS];                              // elements, mean, sum of squares about it
};

struct Shared {
  alignas(128) uint4 data[STAGES][CHUNK / 8];
  alignas(8) unsigned long long full[STAGES], empty[STAGES], known[STAGES];
  int task[STAGES];
  float4 part[2][COMPUTE];
  alignas(8) unsigned long long booked[2], taken[2];
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

__global__ void __launch_bounds__(THREADS, 1)
group_norm(const uint4* __restrict__ in, const __nv_bfloat16* __restrict__ w, const __nv_bfloat16* __restrict__ b,
           uint4* __restrict__ out, State* state) {
  extern __shared__ unsigned char memory[];
  Shared& s = *reinterpret_cast<Shared*>(memory);
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
  if (threadIdx.x == 0) {
    for (int i = 0; i < STAGES; ++i) {
      init(&s.full[i], 1);
      init(&s.empty[i], COMPUTE + 2);
      init(&s.known[i], 1);
    }
    for (int i = 0; i < 2; ++i) {
      init(&s.booked[i], COMPUTE);
      init(&s.taken[i], 1);
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
  if (warp == COMPUTE + 1) {                                // books the statistics, once a group
    int group = -1, tasks = 0, books = 0;
    for (int n = 0;; ++n) {
      const int stage = n % STAGES, parity = (n / STAGES) & 1;
      wait(&s.full[stage], parity);
      const int t = s.task[stage];
      const Task task = t < 0 ? Task{false, -1, 0} : task_of(t);
      if (lane == 0 && t >= 0) arrive(&s.empty[stage]);
      if (group >= 0 && !(task.statistics && task.group == group)) {
        const int slot = books & 1, turn = (books >> 1) & 1;
        wait(&s.booked[slot], turn);
        float4 p = s.part[slot][lane % COMPUTE];
        __syncwarp();
        if (lane == 0) arrive(&s.taken[slot]);
        for (int o = 1; o < COMPUTE; o <<= 1) {
          const float mean = __shfl_xor_sync(~0u, p.y, o), square = __shfl_xor_sync(~0u, p.z, o);
          const float d = mean - p.y;
          p = make_float4(2.f * p.x, 0.5f * (p.y + mean), p.z + square + d * d * (0.5f * p.x), 0.f);
        }
        unsigned before = 0;
        if (lane == 0) {
          state->part[group][blockIdx.x] = p;
          __threadfence();
          before = atomicAdd(&state->done[group], (unsigned)tasks) + tasks;
        }
        before = __shfl_sync(~0u, before, 0);
        if (before == TASKS) {
          __threadfence();
          double total = 0.0, square = 0.0;
          for (int i = lane; i < BLOCKS; i += 32) {
            const float4 q = __ldcg(&state->part[group][i]);
            total += (double)q.x * q.y;
          }
          for (int o = 16; o; o >>= 1) total += __shfl_xor_sync(~0u, total, o);
          const double mean = total / GROUP;
          for (int i = lane; i < BLOCKS; i += 32) {
            const float4 q = __ldcg(&state->part[group][i]);
            const double d = (double)q.y - mean;
            square += (double)q.z + d * d * q.x;
          }
          for (int o = 16; o; o >>= 1) square += __shfl_xor_sync(~0u, square, o);
          if (lane == 0) {
            state->mean[group] = (float)mean;
            state->rstd[group] = (float)(1.0 / sqrt(square / GROUP + v::eps));
            __threadfence();
            atomicExch(&state->ready[group], 1u);
          }
        }
        ++books;
        group = -1;
      }
      if (t < 0) return;
      if (task.statistics) {
        tasks = group < 0 ? 1 : tasks + 1;
        group = task.group;
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
  float count = 0.f, mean = 0.f, square = 0.f;               // of this thread, over its block's tasks of a group
  int group = -1, books = 0;
  for (int n = 0;; ++n) {                                   // computes
    const int stage = n % STAGES, parity = (n / STAGES) & 1;
    wait(&s.full[stage], parity);
    const int t = s.task[stage];
    const Task task = t < 0 ? Task{false, -1, 0} : task_of(t);
    if (group >= 0 && !(task.statistics && task.group == group)) {
      float m = mean, q = square, c = count;
#pragma unroll
      for (int o = 16; o; o >>= 1) {
        const float om = __shfl_xor_sync(~0u, m, o), oq = __shfl_xor_sync(~0u, q, o), d = om - m;
        m = 0.5f * (m + om);
        q = q + oq + d * d * (0.5f * c);
        c *= 2.f;
      }
      const int slot = books & 1;
      if (lane == 0) {
        if (books >= 2) wait(&s.taken[slot], ((books >> 1) - 1) & 1);
        s.part[slot][warp] = make_float4(c, m, q, 0.f);
        arrive(&s.booked[slot]);
      }
      __syncwarp();
      ++books;
      group = -1;
    }
    if (t < 0) return;
    const uint4* data = s.data[stage] + threadIdx.x;
    uint4 raw[VECTORS];
#pragma unroll
    for (int i = 0; i < VECTORS; ++i) raw[i] = data[i * COMPUTE * 32];
    if (task.statistics) {
      float x[VALUES], sum = 0.f, q = 0.f;
#pragma unroll
      for (int i = 0; i < VECTORS; ++i) unpack(raw[i], x + 8 * i);
      __syncwarp();
      if (lane == 0) arrive(&s.empty[stage]);
#pragma unroll
      for (int i = 0; i < VALUES; ++i) sum += x[i];
      const float m = sum * (1.f / VALUES);
#pragma unroll
      for (int i = 0; i < VALUES; ++i) q = fmaf(x[i] - m, x[i] - m, q);
      if (group < 0) {
        count = VALUES, mean = m, square = q, group = task.group;
      } else {
        const float whole = count + VALUES, d = m - mean, part = VALUES / whole;
        mean += d * part;
        square += q + d * d * count * part;
        count = whole;
      }
    } else {
      wait(&s.known[stage], parity);
      const float2 norm = s.norm[stage];
      __syncwarp();
      if (lane == 0) arrive(&s.empty[stage]);
      const int channel = (task.group % v::num_groups) * PER_GROUP + (int)((long long)task.chunk * CHUNK / CHANNEL);
      const float scale = norm.y * __bfloat162float(w[channel]), shift = __bfloat162float(b[channel]);
      uint4* to = out + ((long long)task.group * GROUP + (long long)task.chunk * CHUNK) / 8 + threadIdx.x;
#pragma unroll
      for (int i = 0; i < VECTORS; ++i) {
        float f[8];
        unpack(raw[i], f);
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
  cudaMemsetAsync(state, 0, sizeof(State), stream);
  cudaFuncSetAttribute(group_norm, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)sizeof(Shared));
  group_norm<<<BLOCKS, THREADS, sizeof(Shared), stream>>>(
      reinterpret_cast<const uint4*>(input), weight, bias, reinterpret_cast<uint4*>(out), state);
  return cudaGetLastError();
}
