// one kernel, tasks in ticket order: a group's statistics, then its normalisation while it is still in the L2; Welford
namespace {
constexpr int THREADS = 256;
constexpr int VECTORS = 8;                                  // 16-byte vectors a thread and task
constexpr int CHUNK = THREADS * VECTORS * 8;                // elements of a task
constexpr long long CHANNEL = v::input_shape[2] * v::input_shape[3];
constexpr int PER_GROUP = v::input_shape[1] / v::num_groups;
constexpr long long GROUP = CHANNEL * PER_GROUP;
constexpr int GROUPS = v::input_shape[0] * v::num_groups;
constexpr int TASKS = GROUP / CHUNK;                        // of a group and phase
constexpr int AHEAD = 1;                                    // groups between the two phases
static_assert(GROUP % CHUNK == 0 && CHANNEL % CHUNK == 0, "whole chunks, each in one channel");

struct State {
  unsigned ticket;
  unsigned done[GROUPS];
  unsigned ready[GROUPS];
  float mean[GROUPS], rstd[GROUPS];
  float2 part[GROUPS][TASKS];
};

__device__ __forceinline__ void unpack(uint4 q, float* f) {
  const unsigned w[4] = {q.x, q.y, q.z, q.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    f[2 * i] = __uint_as_float(w[i] << 16);
    f[2 * i + 1] = __uint_as_float(w[i] & 0xffff0000u);
  }
}

__device__ __forceinline__ float block_sum(float x, float* shared) {
  for (int o = 16; o; o >>= 1) x += __shfl_xor_sync(~0u, x, o);
  const int warp = threadIdx.x >> 5;
  __syncthreads();
  if ((threadIdx.x & 31) == 0) shared[warp] = x;
  __syncthreads();
  float total = 0.f;
#pragma unroll
  for (int i = 0; i < THREADS / 32; ++i) total += shared[i];
  return total;
}

__device__ __forceinline__ double block_sum(double x, double* shared) {
  for (int o = 16; o; o >>= 1) x += __shfl_xor_sync(~0u, x, o);
  const int warp = threadIdx.x >> 5;
  __syncthreads();
  if ((threadIdx.x & 31) == 0) shared[warp] = x;
  __syncthreads();
  double total = 0.0;
  for (int i = 0; i < THREADS / 32; ++i) total += shared[i];
  return total;
}

__global__ void __launch_bounds__(THREADS) group_norm(const uint4* __restrict__ in, const __nv_bfloat16* __restrict__ w,
                                                      const __nv_bfloat16* __restrict__ b, uint4* __restrict__ out,
                                                      State* state) {
  __shared__ float shared[THREADS / 32];
  __shared__ double wide[THREADS / 32];
  __shared__ unsigned now;
  __shared__ int last;
  const unsigned all = 2u * GROUPS * TASKS;
  while (true) {
    __syncthreads();
    if (threadIdx.x == 0) now = atomicAdd(&state->ticket, 1u);
    __syncthreads();
    const unsigned t = now;
    if (t >= all) return;
    // Order: S(0) .. S(AHEAD), then N(0) S(AHEAD+1) N(1) ..., and the last N's.
    const unsigned step = t / TASKS;
    const int chunk = t % TASKS;
    int group;
    bool statistics;
    if (step <= AHEAD) { statistics = true; group = step; }
    else {
      const unsigned k = step - AHEAD - 1;
      const unsigned pairs = 2u * (GROUPS - AHEAD - 1);
      if (k < pairs) { statistics = k & 1; group = statistics ? AHEAD + 1 + k / 2 : k / 2; }
      else { statistics = false; group = GROUPS - AHEAD - 1 + (k - pairs); }
    }
    const long long base = ((long long)group * GROUP + (long long)chunk * CHUNK) / 8;
    if (statistics) {
      float x[VECTORS * 8];
      uint4 q[VECTORS];
#pragma unroll
      for (int i = 0; i < VECTORS; ++i) q[i] = in[base + i * THREADS + threadIdx.x];
      float sum = 0.f;
#pragma unroll
      for (int i = 0; i < VECTORS; ++i) {
        unpack(q[i], x + 8 * i);
#pragma unroll
        for (int j = 0; j < 8; ++j) sum += x[8 * i + j];
      }
      const float mean = block_sum(sum, shared) / CHUNK;
      float square = 0.f;
#pragma unroll
      for (int i = 0; i < VECTORS * 8; ++i) square += (x[i] - mean) * (x[i] - mean);
      square = block_sum(square, shared);
      if (threadIdx.x == 0) {
        state->part[group][chunk] = make_float2(mean, square);
        __threadfence();
        last = atomicAdd(&state->done[group], 1u) == TASKS - 1;
      }
      __syncthreads();
      if (last) {
        __threadfence();
        double total = 0.0;
        for (int i = threadIdx.x; i < TASKS; i += THREADS) total += (double)__ldcg(&state->part[group][i].x);
        const double whole = block_sum(total, wide) / TASKS;
        double m2 = 0.0;
        for (int i = threadIdx.x; i < TASKS; i += THREADS) {
          const double d = (double)__ldcg(&state->part[group][i].x) - whole;
          m2 += (double)__ldcg(&state->part[group][i].y) + d * d * CHUNK;
        }
        m2 = block_sum(m2, wide);
        if (threadIdx.x == 0) {
          state->mean[group] = (float)whole;
          state->rstd[group] = (float)(1.0 / sqrt(m2 / GROUP + v::eps));
          __threadfence();
          atomicExch(&state->ready[group], 1u);
        }
      }
    } else {
      uint4 q[VECTORS];
#pragma unroll
      for (int i = 0; i < VECTORS; ++i) q[i] = __ldcs(in + base + i * THREADS + threadIdx.x);
      if (threadIdx.x == 0) {
        while (atomicAdd(&state->ready[group], 0u) == 0u) __nanosleep(100);
        __threadfence();
      }
      __syncthreads();
      const float mean = __ldcg(&state->mean[group]), rstd = __ldcg(&state->rstd[group]);
      const int channel = (group % v::num_groups) * PER_GROUP + (int)((long long)chunk * CHUNK / CHANNEL);
      const float scale = rstd * __bfloat162float(w[channel]);
      const float shift = __bfloat162float(b[channel]);
#pragma unroll
      for (int i = 0; i < VECTORS; ++i) {
        float f[8];
        unpack(q[i], f);
        unsigned r[4];
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const __nv_bfloat162 p =
              __floats2bfloat162_rn((f[2 * j] - mean) * scale + shift, (f[2 * j + 1] - mean) * scale + shift);
          r[j] = *reinterpret_cast<const unsigned*>(&p);
        }
        __stcs(out + base + i * THREADS + threadIdx.x, make_uint4(r[0], r[1], r[2], r[3]));
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
  group_norm<<<132 * 4, THREADS, 0, stream>>>(reinterpret_cast<const uint4*>(input), weight, bias,
                                              reinterpret_cast<uint4*>(out), state);
  return cudaGetLastError();
}
