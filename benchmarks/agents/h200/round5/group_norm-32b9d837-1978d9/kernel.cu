// ticket kernel: tickets two ahead, loads one task ahead of their use, one barrier a task (warp 0 books sums, each warp polls one word), first reads evict-last, second reads evict-first in the L2
namespace {
constexpr int THREADS = 256, PER_SM = 3, WARPS = THREADS / 32;
constexpr int VECTORS = 4;                                  // 16-byte vectors a thread and task
constexpr int OWN = VECTORS * 8;                            // elements of a thread and task
constexpr int CHUNK = THREADS * OWN;                        // elements of a task
constexpr long long CHANNEL = v::input_shape[2] * v::input_shape[3];
constexpr int PER_GROUP = v::input_shape[1] / v::num_groups;
constexpr long long GROUP = CHANNEL * PER_GROUP;
constexpr int GROUPS = v::input_shape[0] * v::num_groups;
constexpr int TASKS = GROUP / CHUNK;                        // of a group and phase
constexpr int AHEAD = 2;                                    // groups between the two phases
constexpr unsigned ALL = 2u * GROUPS * TASKS;
static_assert(GROUP % CHUNK == 0 && CHANNEL % CHUNK == 0 && TASKS % 32 == 0, "whole chunks, each in one channel");

struct State {                                              // all zero at first; words of mean and spread, see `put`
  unsigned ticket;
  unsigned done[GROUPS];
  unsigned long long known[GROUPS], part[GROUPS][TASKS];
};

struct Task {
  bool statistics;
  int group, chunk;
};

__device__ __forceinline__ Task task_of(unsigned t) {
  // Order: S(0) .. S(AHEAD), then N(0) S(AHEAD+1) N(1) ..., and the last N's.
  const int step = t / TASKS, k = step - AHEAD - 1;
  constexpr int PAIRS = 2 * (GROUPS - AHEAD - 1);
  Task task;
  task.chunk = t % TASKS;
  if (k < 0) { task.statistics = true; task.group = step; }
  else if (k < PAIRS) { task.statistics = k & 1; task.group = (k & 1 ? AHEAD + 1 : 0) + k / 2; }
  else { task.statistics = false; task.group = GROUPS - AHEAD - 1 + (k - PAIRS); }
  return task;
}

__device__ __forceinline__ size_t place(Task task) {        // of the thread's first vector
  return (size_t)task.group * (GROUP / 8) + (size_t)task.chunk * (CHUNK / 8) + threadIdx.x;
}

__device__ __forceinline__ uint4 load(const uint4* p, unsigned long long policy) {
  uint4 q;
  asm volatile("ld.global.L1::no_allocate.L2::cache_hint.v4.u32 {%0,%1,%2,%3}, [%4], %5;"
               : "=r"(q.x), "=r"(q.y), "=r"(q.z), "=r"(q.w) : "l"(p), "l"(policy) : "memory");
  return q;
}

__device__ __forceinline__ void unpack(uint4 q, float* f) {
  const unsigned w[4] = {q.x, q.y, q.z, q.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    f[2 * i] = __uint_as_float(w[i] << 16);
    f[2 * i + 1] = __uint_as_float(w[i] & 0xffff0000u);
  }
}

// Mean and sum of squared deviations of two sets of n elements each, to the first.
__device__ __forceinline__ void merge(float& mean, float& square, float other, float more, float n) {
  const float d = other - mean;
  mean = 0.5f * mean + 0.5f * other;
  square = square + more + d * d * (0.5f * n);
}

// One word, a complement, holds both numbers and that they are there: nothing else is ordered by it.
__device__ __forceinline__ void put(unsigned long long* to, float2 p) {
  unsigned long long word = ~((unsigned long long)__float_as_uint(p.x) << 32 | __float_as_uint(p.y));
  if (word == 0ull) word = ~0x7fffffff7fffffffull;          // not a number either
  asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(to), "l"(word) : "memory");
}
__device__ __forceinline__ bool get(const unsigned long long* from, float2& p) {
  unsigned long long word;
  asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(word) : "l"(from) : "memory");
  p = make_float2(__uint_as_float((unsigned)(~word >> 32)), __uint_as_float((unsigned)~word));
  return word != 0ull;
}

// Warp 0 has the sums of a task's warps; the one that ends a group makes it known.
__device__ __forceinline__ void book(State* state, float2 p, int group, int chunk) {
  const int lane = threadIdx.x;
  float n = (float)(32 * OWN);
#pragma unroll
  for (int o = 1; o < WARPS; o <<= 1) {
    merge(p.x, p.y, __shfl_xor_sync(~0u, p.x, o), __shfl_xor_sync(~0u, p.y, o), n);
    n *= 2.f;
  }
  unsigned last = 0u;
  if (lane == 0) {
    put(&state->part[group][chunk], p);                     // not ordered before the count: no fence to wait for
    last = atomicAdd(&state->done[group], 1u) == TASKS - 1;
  }
  if (__shfl_sync(~0u, last, 0) == 0u) return;
  float2 parts[TASKS / 32];
  bool missing = true;
  while (missing) {                                         // the others' words are on their way at most
    missing = false;
#pragma unroll
    for (int i = 0; i < TASKS / 32; ++i) missing |= !get(&state->part[group][i * 32 + lane], parts[i]);
    missing = __any_sync(~0u, missing);
  }
  // Sums of distances from the mean of the first part, which is not far from the group's: exact enough in float64.
  const double first = (double)__shfl_sync(~0u, parts[0].x, 0);
  double total = 0.0, square = 0.0;
#pragma unroll
  for (int i = 0; i < TASKS / 32; ++i) {
    const double d = (double)parts[i].x - first;
    total += d;
    square += (double)parts[i].y + d * d * CHUNK;
  }
#pragma unroll
  for (int o = 16; o; o >>= 1) {
    total += __shfl_xor_sync(~0u, total, o);
    square += __shfl_xor_sync(~0u, square, o);
  }
  const double offset = total / TASKS;
  square -= total * offset * CHUNK;
  const float mean = (float)(first + offset);
  const float rstd = 1.f / sqrtf((float)((square < 0.0 ? 0.0 : square) / GROUP + v::eps));
  if (lane == 0) put(&state->known[group], make_float2(mean, rstd));
}

struct Shared {
  float2 sums[2][WARPS];
  unsigned tickets[2];
};

// Does task `now` with its vectors q, has those of task `next` on their way to `ahead`, and gets the ticket after it.
__device__ __forceinline__ unsigned step(const uint4* __restrict__ in, const __nv_bfloat16* __restrict__ w,
                                         const __nv_bfloat16* __restrict__ b, uint4* __restrict__ out, State* state, Shared& s,
                                         unsigned now, unsigned next, const uint4 (&q)[VECTORS], uint4 (&ahead)[VECTORS],
                                         unsigned long long keep, unsigned long long drop, int turn) {
  unsigned after = ALL;
  if (next < ALL) {
    const Task task = task_of(next);
    const uint4* from = in + place(task);
    const unsigned long long policy = task.statistics ? keep : drop;
#pragma unroll
    for (int i = 0; i < VECTORS; ++i) ahead[i] = load(from + i * THREADS, policy);
    if (threadIdx.x == 0) after = atomicAdd(&state->ticket, 1u);
  }
  const Task task = task_of(now);
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
  if (task.statistics) {
    float sums[4] = {}, squares[4] = {};
#pragma unroll
    for (int i = 0; i < VECTORS; ++i) {
      float x[8];
      unpack(q[i], x);
#pragma unroll
      for (int j = 0; j < 8; ++j) sums[j & 3] = fmaf(x[j], 1.f / OWN, sums[j & 3]);  // cannot overflow
    }
    float mean = (sums[0] + sums[1]) + (sums[2] + sums[3]);
#pragma unroll
    for (int i = 0; i < VECTORS; ++i) {
      float x[8];
      uint4 again = q[i];                                   // unpacked a second time, which needs fewer registers
      asm volatile("" : "+r"(again.x), "+r"(again.y), "+r"(again.z), "+r"(again.w));
      unpack(again, x);
#pragma unroll
      for (int j = 0; j < 8; ++j) squares[j & 3] = fmaf(x[j] - mean, x[j] - mean, squares[j & 3]);
    }
    float square = (squares[0] + squares[1]) + (squares[2] + squares[3]);
    float n = (float)OWN;
#pragma unroll
    for (int o = 16; o; o >>= 1) {
      merge(mean, square, __shfl_xor_sync(~0u, mean, o), __shfl_xor_sync(~0u, square, o), n);
      n *= 2.f;
    }
    if (lane == 0) s.sums[turn][warp] = make_float2(mean, square);
  } else {
    const int channel = (task.group % v::num_groups) * PER_GROUP + task.chunk / (int)(CHANNEL / CHUNK);
    const float weight = __bfloat162float(w[channel]), shift = __bfloat162float(b[channel]);
    float2 norm;
    while (!__all_sync(~0u, get(&state->known[task.group], norm))) __nanosleep(100);  // all lanes read the one word
    const float mean = norm.x, scale = norm.y * weight;
    uint4* to = out + place(task);
#pragma unroll
    for (int i = 0; i < VECTORS; ++i) {
      float f[8];
      unpack(q[i], f);
      unsigned r[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const __nv_bfloat162 p =
            __floats2bfloat162_rn(fmaf(f[2 * j] - mean, scale, shift), fmaf(f[2 * j + 1] - mean, scale, shift));
        r[j] = *reinterpret_cast<const unsigned*>(&p);
      }
      __stcs(to + i * THREADS, make_uint4(r[0], r[1], r[2], r[3]));
    }
  }
  if (threadIdx.x == 0) s.tickets[turn] = after;
  __syncthreads();                                          // the other turn's words are written before the next one only
  if (task.statistics && warp == 0) book(state, s.sums[turn][lane % WARPS], task.group, task.chunk);
  return s.tickets[turn];
}

__global__ void __launch_bounds__(THREADS, PER_SM) group_norm(const uint4* __restrict__ in, const __nv_bfloat16* __restrict__ w,
                                                         const __nv_bfloat16* __restrict__ b, uint4* __restrict__ out,
                                                         State* state) {
  __shared__ Shared s;
  unsigned long long keep, drop;
  asm volatile("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(keep));
  asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(drop));
  if (threadIdx.x == 0) {
    s.tickets[0] = atomicAdd(&state->ticket, 1u);           // two, of which the first one is the lower
    s.tickets[1] = atomicAdd(&state->ticket, 1u);
  }
  __syncthreads();
  unsigned now = s.tickets[0], next = s.tickets[1];
  __syncthreads();
  if (now >= ALL) return;
  uint4 q[VECTORS], ahead[VECTORS];
  const Task task = task_of(now);
#pragma unroll
  for (int i = 0; i < VECTORS; ++i) q[i] = load(in + place(task) + i * THREADS, task.statistics ? keep : drop);
#pragma unroll 1
  while (true) {
    now = step(in, w, b, out, state, s, now, next, q, ahead, keep, drop, 0);   // tickets: now is the one after the next
    if (next >= ALL) return;
    next = step(in, w, b, out, state, s, next, now, ahead, q, keep, drop, 1);
    if (now >= ALL) return;
  }
}

// Any alignment: two kernels, element by element.
constexpr int SPLITS = TASKS;

__device__ __forceinline__ double warp_sum(double x) {
#pragma unroll
  for (int o = 16; o; o >>= 1) x += __shfl_xor_sync(~0u, x, o);
  return x;
}

struct Sums {
  double2 of[GROUPS][SPLITS];
};

__global__ void __launch_bounds__(256) any_sums(const __nv_bfloat16* __restrict__ in, Sums* sums) {
  __shared__ double2 parts[8];
  const __nv_bfloat16* from = in + blockIdx.y * GROUP + (size_t)blockIdx.x * CHUNK;
  double total = 0.0, square = 0.0;
  for (int i = threadIdx.x; i < CHUNK; i += 256) {
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
    sums->of[blockIdx.y][blockIdx.x] = make_double2(total, square);
  }
}

__global__ void __launch_bounds__(256) any_norm(const __nv_bfloat16* __restrict__ in, const __nv_bfloat16* __restrict__ w,
                                                const __nv_bfloat16* __restrict__ b, __nv_bfloat16* __restrict__ out,
                                                const Sums* sums) {
  double total = 0.0, square = 0.0;
  for (int i = threadIdx.x & 31; i < SPLITS; i += 32) {
    total += sums->of[blockIdx.y][i].x;
    square += sums->of[blockIdx.y][i].y;
  }
  const double mean = warp_sum(total) / GROUP, spread = warp_sum(square) / GROUP - mean * mean;
  const float center = (float)mean, rstd = (float)(1.0 / sqrt((spread < 0.0 ? 0.0 : spread) + v::eps));
  for (int i = threadIdx.x; i < CHUNK; i += 256) {
    const long long at = blockIdx.y * GROUP + (long long)blockIdx.x * CHUNK + i;
    const int channel = (int)(at / CHANNEL) % (int)v::input_shape[1];
    out[at] = __float2bfloat16(fmaf(__bfloat162float(in[at]) - center, rstd * __bfloat162float(w[channel]),
                                    __bfloat162float(b[channel])));
  }
}
}  // namespace

extern "C" size_t workspace_bytes(void) { return std::max(sizeof(State), sizeof(Sums)); }

extern "C" int launch(const __nv_bfloat16* input, const __nv_bfloat16* weight, const __nv_bfloat16* bias,
                      __nv_bfloat16* out, void* workspace, cudaStream_t stream) {
  if (((reinterpret_cast<uintptr_t>(input) | reinterpret_cast<uintptr_t>(out)) & 15) == 0) {
    State* state = static_cast<State*>(workspace);
    cudaMemsetAsync(state, 0, sizeof(State), stream);
    group_norm<<<132 * PER_SM, THREADS, 0, stream>>>(reinterpret_cast<const uint4*>(input), weight, bias,
                                                reinterpret_cast<uint4*>(out), state);
  } else {
    Sums* sums = static_cast<Sums*>(workspace);
    any_sums<<<dim3(SPLITS, GROUPS), 256, 0, stream>>>(input, sums);
    any_norm<<<dim3(SPLITS, GROUPS), 256, 0, stream>>>(input, weight, bias, out, sums);
  }
  return cudaGetLastError();
}
