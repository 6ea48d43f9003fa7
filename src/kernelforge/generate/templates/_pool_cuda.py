"""CUDA texts of the pooling templates."""

WINDOW = """\
// $OPERATOR: a thread makes OUTPUTS adjacent outputs. It reduces the rows of their windows into one register per input
// column, 16 bytes at a time where rows are aligned, and then each window along its columns. Schedule: $SCHEDULE
constexpr int KERNEL_H = v::kernel_size[0], KERNEL_W = v::kernel_size[1];
constexpr int STRIDE_H = v::stride[0], STRIDE_W = v::stride[1], PAD_H = v::padding[0], PAD_W = v::padding[1];
constexpr int DILATION_H = $DILATION_H, DILATION_W = $DILATION_W;
constexpr int THREADS = $THREADS;
constexpr int OUTPUTS = $OUTPUTS;          // adjacent outputs of one thread
constexpr int MAIN = OUTPUTS * STRIDE_W;   // input columns from one thread to the next
// Columns of all windows of a thread, and those of them behind MAIN.
constexpr int SPAN = (OUTPUTS - 1) * STRIDE_W + (KERNEL_W - 1) * DILATION_W + 1;
constexpr int RIGHT = SPAN > PAD_W + MAIN ? SPAN - PAD_W - MAIN : 0;
using Index = $INDEX;

template <int N>
struct alignas(N * sizeof($T)) Pack { $T item[N]; };

$COMBINE

template <int VECTOR>
__global__ void __launch_bounds__(THREADS)
pool(const $T* __restrict__ input, $T* __restrict__ out, Index lines, int height, int width, int out_height,
     int out_width, int groups, bool packed) {
  const Index index = static_cast<Index>(blockIdx.x) * THREADS + threadIdx.x;
  if (index >= lines * groups) return;
  const Index line = index / groups;
  const int group = static_cast<int>(index - line * groups);
  const int oh = static_cast<int>(line % out_height);
  const $T* image = input + line / out_height * height * width;
  const int base = group * MAIN;  // columns base - PAD_W ... base + MAIN + RIGHT - 1 are in `column`

  $ACC column[PAD_W + MAIN + RIGHT];
#pragma unroll
  for (int i = 0; i < PAD_W + MAIN + RIGHT; ++i) column[i] = $START;
#pragma unroll $UNROLL
  for (int kh = 0; kh < KERNEL_H; ++kh) {
    const int h = oh * STRIDE_H - PAD_H + kh * DILATION_H;
    if (h < 0 || h >= height) continue;
    const $T* source = image + static_cast<Index>(h) * width;
#pragma unroll
    for (int i = 0; i < PAD_W; ++i) {
      const int w = base - PAD_W + i;
      if (w >= 0 && w < width) column[i] = combine(column[i], $ACC(source[w]));
    }
#pragma unroll
    for (int i = 0; i < MAIN; i += VECTOR) {
      const int w = base + i;
      if (w < width) {  // width is a multiple of VECTOR
        const Pack<VECTOR> pack = *reinterpret_cast<const Pack<VECTOR>*>(source + w);
#pragma unroll
        for (int k = 0; k < VECTOR; ++k) column[PAD_W + i + k] = combine(column[PAD_W + i + k], $ACC(pack.item[k]));
      }
    }
#pragma unroll
    for (int i = 0; i < RIGHT; ++i) {
      const int w = base + MAIN + i;
      if (w < width) column[PAD_W + MAIN + i] = combine(column[PAD_W + MAIN + i], $ACC(source[w]));
    }
  }

  Pack<OUTPUTS> result;
$FINISH
  $T* place = out + line * out_width + group * OUTPUTS;
  if (packed) {
    *reinterpret_cast<Pack<OUTPUTS>*>(place) = result;
  } else {
#pragma unroll
    for (int o = 0; o < OUTPUTS; ++o)
      if (group * OUTPUTS + o < out_width) place[o] = result.item[o];
  }
}

$HEAD
  (void)workspace;
  const Index planes = static_cast<Index>($PLANES);
  const int height = static_cast<int>($H), width = static_cast<int>($W);
  const int out_height = static_cast<int>($OUT_H), out_width = static_cast<int>($OUT_W);
  const int groups = (out_width + OUTPUTS - 1) / OUTPUTS;
  const Index lines = planes * out_height;
  const int64_t total = static_cast<int64_t>(lines) * groups;
  if (total == 0) return 0;
  const unsigned blocks = static_cast<unsigned>((total + THREADS - 1) / THREADS);
  const bool packed = $OUT_ALIGNED && out_width % OUTPUTS == 0;
$LAUNCH
  return cudaGetLastError();
}
"""

LAUNCH_VECTOR = """\
  if (width % $VECTOR == 0)
    pool<$VECTOR><<<blocks, THREADS, 0, stream>>>(
        input, out, lines, height, width, out_height, out_width, groups, packed);
  else
    pool<1><<<blocks, THREADS, 0, stream>>>(
        input, out, lines, height, width, out_height, out_width, groups, packed);"""

LAUNCH_SCALAR = """\
  pool<1><<<blocks, THREADS, 0, stream>>>(input, out, lines, height, width, out_height, out_width, groups, packed);"""

MAX_COMBINE = """\
// The larger one; nan wins.
__device__ __forceinline__ $ACC combine($ACC best, $ACC x) { return (x > best || x != x) ? x : best; }"""

SUM_COMBINE = "__device__ __forceinline__ $ACC combine($ACC total, $ACC x) { return total + x; }"

MAX_FINISH = """\
#pragma unroll
  for (int o = 0; o < OUTPUTS; ++o) {
    $ACC best = column[o * STRIDE_W];
#pragma unroll
    for (int kw = 1; kw < KERNEL_W; ++kw) best = combine(best, column[o * STRIDE_W + kw * DILATION_W]);
    result.item[o] = $T(best);
  }"""

AVERAGE_FINISH = """\
  const int h_first = oh * STRIDE_H - PAD_H, h_last = min(h_first + KERNEL_H, height + PAD_H);
  const int h_area = $H_AREA;
#pragma unroll
  for (int o = 0; o < OUTPUTS; ++o) {
    const int w_first = base + o * STRIDE_W - PAD_W, w_last = min(w_first + KERNEL_W, width + PAD_W);
    const int w_area = $W_AREA;
    $ACC total = 0;
#pragma unroll
    for (int kw = 0; kw < KERNEL_W; ++kw) total += column[o * STRIDE_W + kw];
    result.item[o] = $T(total / static_cast<$ACC>(h_area * w_area));
  }"""

FIXED_FINISH = """\
#pragma unroll
  for (int o = 0; o < OUTPUTS; ++o) {
    $ACC total = 0;
#pragma unroll
    for (int kw = 0; kw < KERNEL_W; ++kw) total += column[o * STRIDE_W + kw];
    result.item[o] = $T(total / static_cast<$ACC>($DIVISOR));
  }"""

ADAPTIVE = """\
// adaptive_avg_pool2d: one thread per output, adjacent threads on adjacent outputs. Schedule: $SCHEDULE
constexpr int THREADS = $THREADS;
using Index = $INDEX;

__global__ void __launch_bounds__(THREADS)
pool(const $T* __restrict__ input, $T* __restrict__ out, Index count, int height, int width, int out_height,
     int out_width) {
  const Index index = static_cast<Index>(blockIdx.x) * THREADS + threadIdx.x;
  if (index >= count) return;
  const int ow = static_cast<int>(index % out_width);
  const int oh = static_cast<int>(index / out_width % out_height);
  const $T* image = input + index / (static_cast<Index>(out_width) * out_height) * height * width;
  const int h_first = static_cast<int>(int64_t(oh) * height / out_height);
  const int h_last = static_cast<int>((int64_t(oh + 1) * height + out_height - 1) / out_height);
  const int w_first = static_cast<int>(int64_t(ow) * width / out_width);
  const int w_last = static_cast<int>((int64_t(ow + 1) * width + out_width - 1) / out_width);
  $ACC total = 0;
  for (int h = h_first; h < h_last; ++h)
    for (int w = w_first; w < w_last; ++w) total += $ACC(image[static_cast<Index>(h) * width + w]);
  out[index] = $T(total / static_cast<$ACC>((h_last - h_first) * (w_last - w_first)));
}

$HEAD
  (void)workspace;
  const int height = static_cast<int>($H), width = static_cast<int>($W);
  const int out_height = static_cast<int>($OUT_H), out_width = static_cast<int>($OUT_W);
  const int64_t count = $PLANES * out_height * out_width;
  if (count == 0) return 0;
  const unsigned blocks = static_cast<unsigned>((count + THREADS - 1) / THREADS);
  pool<<<blocks, THREADS, 0, stream>>>(input, out, static_cast<Index>(count), height, width, out_height, out_width);
  return cudaGetLastError();
}
"""

GLOBAL = """\
// Mean of whole planes: a block copies PLANES adjacent planes into shared memory as one run of 16-byte loads, then a
// group of LANES threads sums a plane. Schedule: $SCHEDULE
constexpr int THREADS = $THREADS;
constexpr int LANES = $LANES;               // threads that share a plane
constexpr int PLANES = THREADS / LANES;     // planes of a block
constexpr int AREA = $AREA;                 // elements of a plane
constexpr int VECTOR = 16 / sizeof($T);
using Index = $INDEX;

__global__ void __launch_bounds__(THREADS)
plane_means(const $T* __restrict__ input, $T* __restrict__ out, Index planes) {
  __shared__ __align__(16) $T tile[PLANES * AREA];
  const Index first = static_cast<Index>(blockIdx.x) * PLANES;
  const int here = planes - first < PLANES ? static_cast<int>(planes - first) : PLANES;
  const $T* source = input + first * AREA;  // PLANES * AREA elements are a multiple of 16 bytes
  const int count = here * AREA, vectors = count / VECTOR;
#pragma unroll 4
  for (int i = threadIdx.x; i < vectors; i += THREADS)
    reinterpret_cast<uint4*>(tile)[i] = reinterpret_cast<const uint4*>(source)[i];
  for (int i = vectors * VECTOR + threadIdx.x; i < count; i += THREADS) tile[i] = source[i];
  __syncthreads();
  const int plane = threadIdx.x / LANES, lane = threadIdx.x % LANES;
  $ACC total = 0;
  if (plane < here) {
#pragma unroll 8
    for (int i = lane; i < AREA; i += LANES) total += $ACC(tile[plane * AREA + i]);
  }
#pragma unroll
  for (int step = LANES / 2; step > 0; step /= 2) total += __shfl_xor_sync(0xffffffffu, total, step);
  if (plane < here && lane == 0) out[first + plane] = $T(total / $ACC(AREA));
}

$HEAD
  (void)workspace;
  const int64_t planes = $PLANES_COUNT;
  if (planes == 0) return 0;
  const unsigned blocks = static_cast<unsigned>((planes + PLANES - 1) / PLANES);
  plane_means<<<blocks, THREADS, 0, stream>>>(input, out, static_cast<Index>(planes));
  return cudaGetLastError();
}
"""
