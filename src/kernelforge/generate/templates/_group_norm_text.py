"""Texts of the group_norm template."""

CPP = """\
// group_norm on the CPU: mean, variance and result of a group in three passes over its memory. Schedule: $SCHEDULE
$FUNCTIONS
constexpr int64_t GROUPS = v::num_groups;
constexpr int64_t BLOCK = 4096;  // elements summed in $ACC before they join the total in double
constexpr int64_t GRAIN = $GRAIN;  // elements below which one thread does it all

$HEAD
  (void)workspace;
  const int64_t batch = $BATCH, channels = $CHANNELS, spatial = $SPATIAL;
  const int64_t group_channels = channels / GROUPS, size = group_channels * spatial;
  if (batch * size == 0) return 0;
#pragma omp parallel for schedule(static) if (batch * channels * spatial >= GRAIN)
  for (int64_t group = 0; group < batch * GROUPS; ++group) {
    const $T* x = input + group * size;
    $T* y = out + group * size;
    double total = 0;
    for (int64_t first = 0; first < size; first += BLOCK) {
      const int64_t last = std::min(first + BLOCK, size);
      $ACC sum = 0;
#pragma omp simd reduction(+ : sum)
      for (int64_t i = first; i < last; ++i) sum += $LOAD;
      total += sum;
    }
    const $ACC mean = static_cast<$ACC>(total / static_cast<double>(size));
    double squares = 0;
    for (int64_t first = 0; first < size; first += BLOCK) {
      const int64_t last = std::min(first + BLOCK, size);
      $ACC sum = 0;
#pragma omp simd reduction(+ : sum)
      for (int64_t i = first; i < last; ++i) {
        const $ACC centred = $LOAD - mean;
        sum += centred * centred;
      }
      squares += sum;
    }
    const double rstd = 1.0 / std::sqrt(squares / static_cast<double>(size) + $EPS);
    for (int64_t c = 0; c < group_channels; ++c) {
      const int64_t channel = group % GROUPS * group_channels + c;
      (void)channel;
      const $ACC scale = static_cast<$ACC>(rstd)$WEIGHT, bias_value = $BIAS;
      const int64_t first = c * spatial;
#pragma omp simd
      for (int64_t i = first; i < first + spatial; ++i) {
        const $ACC normal = ($LOAD - mean) * scale + bias_value;
        y[i] = $STORE;
      }
    }
  }
  return 0;
}
"""

_CUDA_HEAD = """\
constexpr int GROUPS = v::num_groups;
constexpr int THREADS = $THREADS;
constexpr int UNROLL = $UNROLL;    // accesses of a thread in flight at once
using Index = $INDEX;

template <int N>
struct alignas(N * sizeof($T)) Pack { $T item[N]; };

// Count, mean and sum of squared distances from the mean: merging these loses no digits, whatever the mean.
struct Moments { float count, mean, squares; };

__device__ __forceinline__ Moments merged(const Moments& a, const Moments& b) {
  const float count = a.count + b.count;
  if (count == 0) return a;
  const float share = b.count / count, distance = b.mean - a.mean;
  return {count, a.mean + distance * share, a.squares + b.squares + distance * distance * a.count * share};
}

__device__ __forceinline__ Moments warp_merged(Moments a) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) {
    const Moments b = {__shfl_xor_sync(0xffffffffu, a.count, step), __shfl_xor_sync(0xffffffffu, a.mean, step),
                       __shfl_xor_sync(0xffffffffu, a.squares, step)};
    a = merged(a, b);
  }
  return a;
}

// Moments of x[first ... last), over the block; valid in the first warp. first and last are multiples of VEC.
template <int VEC>
__device__ Moments block_moments(const $T* x, Index first, Index last) {
  // Sums of distances from the thread's first element stay small, so their squares do not cancel.
  float shift = 0, sum = 0, squares = 0, count = 0;
  Index i = first + threadIdx.x * VEC;
  if (i < last) shift = float(x[i]);
  while (i < last) {
    Pack<VEC> pack[UNROLL];
#pragma unroll
    for (int u = 0; u < UNROLL; ++u)
      if (i + u * (THREADS * VEC) < last) pack[u] = *reinterpret_cast<const Pack<VEC>*>(x + i + u * (THREADS * VEC));
#pragma unroll
    for (int u = 0; u < UNROLL; ++u) {
      if (i + u * (THREADS * VEC) < last) {
#pragma unroll
        for (int k = 0; k < VEC; ++k) {
          const float distance = float(pack[u].item[k]) - shift;
          sum += distance;
          squares += distance * distance;
        }
        count += VEC;
      }
    }
    i += UNROLL * THREADS * VEC;
  }
  Moments own = {count, 0, 0};
  if (count > 0) {
    const float distances = squares - sum * (sum / count);
    own = {count, shift + sum / count, distances < 0 ? 0.0f : distances};  // rounding below 0; nan stays
  }
  own = warp_merged(own);
  __shared__ Moments partial[THREADS / 32];
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = own;
  __syncthreads();
  own = threadIdx.x < THREADS / 32 ? partial[threadIdx.x] : Moments{0, 0, 0};
  return warp_merged(own);
}
"""

CUDA_SPLIT = (
    """\
// group_norm in two kernels. SPLITS blocks share a group and leave their moments in the workspace; then every block
// merges its group's moments and writes a run of one channel. The second kernel starts at the end, where the L2 cache
// still holds what the first read last. Schedule: $SCHEDULE
constexpr int SPLITS = $SPLITS;    // blocks per group
"""
    + _CUDA_HEAD
    + """
template <int VEC>
__global__ void __launch_bounds__(THREADS)
group_moments(const $T* __restrict__ input, Moments* __restrict__ partials, Index size) {
  const Index group = blockIdx.x / SPLITS, split = blockIdx.x % SPLITS;
  const Index run = (size + SPLITS * VEC - 1) / (SPLITS * VEC) * VEC;
  const Index first = min(split * run, size), last = min(first + run, size);
  const Moments own = block_moments<VEC>(input + group * size, first, last);
  if (threadIdx.x == 0) partials[blockIdx.x] = own;
}

template <int VEC>
__global__ void __launch_bounds__(THREADS)
normalise(const $T* __restrict__ input, $PARAMETERS$T* __restrict__ out,
          const Moments* __restrict__ partials, Index spatial, int group_channels, double eps) {
  const Index runs = (spatial + UNROLL * THREADS * VEC - 1) / (UNROLL * THREADS * VEC);
  const Index block = gridDim.x - 1 - blockIdx.x;
  const Index plane = block / runs;  // one channel of one sample
  const Index first = (block % runs * (UNROLL * THREADS) + threadIdx.x) * VEC;
  const $T* x = input + plane * spatial;
  $T* y = out + plane * spatial;

  Pack<VEC> pack[UNROLL];
#pragma unroll
  for (int u = 0; u < UNROLL; ++u)
    if (first + u * (THREADS * VEC) < spatial)
      pack[u] = *reinterpret_cast<const Pack<VEC>*>(x + first + u * (THREADS * VEC));

  __shared__ float shared_mean, shared_rstd;
  if (threadIdx.x < 32) {
    Moments all = {0, 0, 0};
    for (int split = threadIdx.x; split < SPLITS; split += 32)
      all = merged(all, partials[plane / group_channels * SPLITS + split]);
    all = warp_merged(all);
    if (threadIdx.x == 0) {
      shared_mean = all.mean;
      shared_rstd = rsqrtf(all.squares / all.count + float(eps));
    }
  }
  __syncthreads();
  const int channel = static_cast<int>(plane % (GROUPS * group_channels));
  const float mean = shared_mean, scale = shared_rstd$WEIGHT, shift = $BIAS;
  (void)channel;
#pragma unroll
  for (int u = 0; u < UNROLL; ++u) {
    if (first + u * (THREADS * VEC) < spatial) {
#pragma unroll
      for (int k = 0; k < VEC; ++k) pack[u].item[k] = $T((float(pack[u].item[k]) - mean) * scale + shift);
      *reinterpret_cast<Pack<VEC>*>(y + first + u * (THREADS * VEC)) = pack[u];
    }
  }
}

extern "C" size_t workspace_bytes($DIMS) { return sizeof(Moments) * size_t($BATCH) * GROUPS * SPLITS; }

template <int VEC>
static void run(const $T* input, $PARAMETERS$T* out, Moments* partials, int64_t batch, int64_t channels,
                int64_t spatial, double eps, cudaStream_t stream) {
  const int64_t group_channels = channels / GROUPS, size = group_channels * spatial;
  const int64_t runs = (spatial + UNROLL * THREADS * VEC - 1) / (UNROLL * THREADS * VEC);
  group_moments<VEC><<<unsigned(batch * GROUPS * SPLITS), THREADS, 0, stream>>>(input, partials, Index(size));
  normalise<VEC><<<unsigned(batch * channels * runs), THREADS, 0, stream>>>(
      input, $ARGUMENTS out, partials, Index(spatial), int(group_channels), eps);
}

$HEAD
  const int64_t batch = $BATCH, channels = $CHANNELS, spatial = $SPATIAL;
  if (batch * channels * spatial == 0) return 0;
  Moments* partials = static_cast<Moments*>(workspace);
  if (spatial % $VECTOR == 0)
    run<$VECTOR>(input, $ARGUMENTS out, partials, batch, channels, spatial, $EPS, stream);
  else
    run<1>(input, $ARGUMENTS out, partials, batch, channels, spatial, $EPS, stream);
  return cudaGetLastError();
}
"""
)

CUDA_BLOCK = (
    """\
// group_norm in one kernel: a block per group, whose second pass finds the group in the caches. Schedule: $SCHEDULE
"""
    + _CUDA_HEAD
    + """
template <int VEC>
__global__ void __launch_bounds__(THREADS)
group_norm_kernel(const $T* __restrict__ input, $PARAMETERS$T* __restrict__ out,
                  Index spatial, int group_channels, double eps) {
  const Index group = blockIdx.x, size = spatial * group_channels;
  const $T* x = input + group * size;
  $T* y = out + group * size;
  const Moments all = block_moments<VEC>(x, 0, size);
  __shared__ float shared_mean, shared_rstd;
  if (threadIdx.x == 0) {
    shared_mean = all.mean;
    shared_rstd = rsqrtf(all.squares / all.count + float(eps));
  }
  __syncthreads();
  const float mean = shared_mean, rstd = shared_rstd;
  const int first_channel = static_cast<int>(group % GROUPS) * group_channels;
#pragma unroll UNROLL
  for (Index i = threadIdx.x * VEC; i < size; i += THREADS * VEC) {
    const int channel = first_channel + static_cast<int>(i / spatial);  // spatial is a multiple of VEC
    (void)channel;
    const float scale = rstd$WEIGHT, shift = $BIAS;
    Pack<VEC> pack = *reinterpret_cast<const Pack<VEC>*>(x + i);
#pragma unroll
    for (int k = 0; k < VEC; ++k) pack.item[k] = $T((float(pack.item[k]) - mean) * scale + shift);
    *reinterpret_cast<Pack<VEC>*>(y + i) = pack;
  }
}

$HEAD
  (void)workspace;
  const int64_t batch = $BATCH, channels = $CHANNELS, spatial = $SPATIAL;
  if (batch * channels * spatial == 0) return 0;
  const unsigned blocks = unsigned(batch * GROUPS);
  const int group_channels = int(channels / GROUPS);
  if (spatial % $VECTOR == 0)
    group_norm_kernel<$VECTOR><<<blocks, THREADS, 0, stream>>>(
        input, $ARGUMENTS out, Index(spatial), group_channels, $EPS);
  else
    group_norm_kernel<1><<<blocks, THREADS, 0, stream>>>(
        input, $ARGUMENTS out, Index(spatial), group_channels, $EPS);
  return cudaGetLastError();
}
"""
)
