"""Texts of the pad template. Before = the number of elements put before the data along an axis; negative ones crop."""

CPP = """\
// Constant pad on the CPU, an output row at a time: fill, copy, fill. Schedule: $SCHEDULE
$FUNCTIONS
constexpr int64_t GRAIN = $GRAIN;  // elements below which one thread does it all

$HEAD
  (void)workspace;
  const int64_t depth = $D, height = $H, width = $W, out_depth = $OUT_D, out_height = $OUT_H, out_width = $OUT_W;
  const int64_t before_d = $BEFORE_D, before_h = $BEFORE_H, before_w = $BEFORE_W;
  const int64_t lines = $PLANES * out_depth * out_height;
  if (lines * out_width == 0) return 0;
  const $T fill = $FILL;
  // Columns [left, right) of an output row come from the input row.
  const int64_t left = std::clamp<int64_t>(before_w, 0, out_width);
  const int64_t right = std::clamp<int64_t>(before_w + width, left, out_width);
#pragma omp parallel for schedule(static) if (lines * out_width >= GRAIN)
  for (int64_t line = 0; line < lines; ++line) {
    const int64_t h = line % out_height - before_h, d = line / out_height % out_depth - before_d;
    const int64_t plane = line / (out_height * out_depth);
    $T* result = out + line * out_width;
    if (h < 0 || h >= height || d < 0 || d >= depth) {
      std::fill_n(result, out_width, fill);
      continue;
    }
    const $T* source = input + ((plane * depth + d) * height + h) * width - before_w;
    std::fill_n(result, left, fill);
    std::copy(source + left, source + right, result + left);
    std::fill_n(result + right, out_width - right, fill);
  }
  return 0;
}
"""

_CUDA_HEAD = """\
constexpr int THREADS = $THREADS;
constexpr int VEC = $VECTOR;  // output elements per store
using Index = $INDEX;

struct alignas(VEC * sizeof($T)) Pack { $T item[VEC]; };

struct Sizes { int depth, height, width, out_depth, out_height, out_width, before_d, before_h, before_w; };

// The input row behind output row `line`, or null if that row is padding. Its element 0 may lie outside the image.
__device__ __forceinline__ const $T* source_row(const $T* input, Index line, const Sizes& s) {
  const int h = static_cast<int>(line % s.out_height) - s.before_h;
  const Index slice = line / s.out_height;
  const int d = static_cast<int>(slice % s.out_depth) - s.before_d;
  if (h < 0 || h >= s.height || d < 0 || d >= s.depth) return nullptr;
  return input + ((slice / s.out_depth * s.depth + d) * s.height + h) * s.width;
}
"""

_CUDA_LAUNCH = """
$HEAD
  (void)workspace;
  const Sizes s = {int($D), int($H), int($W), int($OUT_D), int($OUT_H), int($OUT_W),
                   int($BEFORE_D), int($BEFORE_H), int($BEFORE_W)};
  const int64_t lines = $PLANES * s.out_depth * s.out_height, count = lines * s.out_width;
  if (count == 0) return 0;
"""

CUDA_FLAT = (
    """\
// Constant pad: a thread makes VEC adjacent outputs, whatever rows they are in, so that every store is aligned.
// Schedule: $SCHEDULE
"""
    + _CUDA_HEAD
    + """
__global__ void __launch_bounds__(THREADS)
pad_kernel(const $T* __restrict__ input, $T* __restrict__ out, Index count, Sizes s, double value) {
  const Index vector = static_cast<Index>(blockIdx.x) * THREADS + threadIdx.x;
  if (vector >= (count + VEC - 1) / VEC) return;
  const Index first = vector * VEC;
  Index line = first / s.out_width;
  int w = static_cast<int>(first - line * s.out_width) - s.before_w;
  const $T* source = source_row(input, line, s);
  const $T fill = $T(value);
  Pack pack;
  if (source && w >= 0 && w + VEC <= s.width && w + s.before_w + VEC <= s.out_width) {
#pragma unroll
    for (int k = 0; k < VEC; ++k) pack.item[k] = source[w + k];
  } else {
#pragma unroll
    for (int k = 0; k < VEC; ++k) {
      pack.item[k] = source && w >= 0 && w < s.width ? source[w] : fill;
      if (++w == s.out_width - s.before_w && first + k + 1 < count) {
        w = -s.before_w;
        source = source_row(input, ++line, s);
      }
    }
  }
  if (first + VEC <= count) {
    *reinterpret_cast<Pack*>(out + first) = pack;
  } else {
#pragma unroll
    for (int k = 0; k < VEC; ++k)
      if (first + k < count) out[first + k] = pack.item[k];
  }
}
"""
    + _CUDA_LAUNCH
    + """\
  const int64_t vectors = (count + VEC - 1) / VEC;
  const unsigned blocks = unsigned((vectors + THREADS - 1) / THREADS);
  pad_kernel<<<blocks, THREADS, 0, stream>>>(input, out, Index(count), s, $VALUE);
  return cudaGetLastError();
}
"""
)

CUDA_LINES = (
    """\
// Constant pad: a block per output row, no division per element. Stores are aligned: the few elements before the first
// aligned place and behind the last are written one by one. Schedule: $SCHEDULE
"""
    + _CUDA_HEAD
    + """
__global__ void __launch_bounds__(THREADS)
pad_kernel(const $T* __restrict__ input, $T* __restrict__ out, Sizes s, double value) {
  const Index line = blockIdx.x;
  const $T* source = source_row(input, line, s);
  const $T fill = $T(value);
  $T* result = out + line * s.out_width;
  const int head = min(static_cast<int>((VEC - line * s.out_width % VEC) % VEC), s.out_width);
  const int vectors = (s.out_width - head) / VEC, tail = head + vectors * VEC;
  auto element = [&](int column) {
    const int w = column - s.before_w;
    return source && w >= 0 && w < s.width ? source[w] : fill;
  };
#pragma unroll 4
  for (int i = threadIdx.x; i < vectors; i += THREADS) {
    Pack pack;
#pragma unroll
    for (int k = 0; k < VEC; ++k) pack.item[k] = element(head + i * VEC + k);
    *reinterpret_cast<Pack*>(result + head + i * VEC) = pack;
  }
  if (threadIdx.x < head) result[threadIdx.x] = element(threadIdx.x);
  if (threadIdx.x < s.out_width - tail) result[tail + threadIdx.x] = element(tail + threadIdx.x);
}
"""
    + _CUDA_LAUNCH
    + """\
  pad_kernel<<<unsigned(lines), THREADS, 0, stream>>>(input, out, s, $VALUE);
  return cudaGetLastError();
}
"""
)
