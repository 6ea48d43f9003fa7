"""Texts of the interpolate template. Index arithmetic is torch's own, in the same precision, so that indices agree."""

NEAREST_INDEX = """\
// The input index of output index o, as torch computes it: exact for the same and the double size, else in float.
$DEVICE $INT source_index($INT o, $INT size, $INT$OUT_SIZE, float scale) {
$EXACT  return std::min(static_cast<$INT>(std::floor((static_cast<float>(o)$OFFSET) * scale)), size - 1);
}"""

SHORTCUTS = """\
  if (out_size == size) return o;
  if (out_size == 2 * size) return o / 2;
"""

LINEAR_POSITION = """\
// The input position of output index o: the corners are aligned, or the centres of the corner pixels.
$DEVICE $ACC source_position($INT o, $ACC scale) {
  return $POSITION;
}"""

ALIGNED_POSITION = "scale * static_cast<$ACC>(o)"
CENTRE_POSITION = "std::max(scale * (static_cast<$ACC>(o) + $ACC(0.5)) - $ACC(0.5), $ACC(0))"

_CPP_HEAD = """\
$FUNCTIONS
constexpr int64_t COLUMNS = $COLUMNS;  // of an output row at most
constexpr int64_t GRAIN = $GRAIN;  // elements below which one thread does it all

$INDEX_FUNCTION

$HEAD
  (void)workspace;
  const int64_t height = $H, width = $W, out_height = $OUT_H, out_width = $OUT_W;
  const int64_t lines = $PLANES * out_height;
  if (lines * out_width == 0) return 0;
  const $SCALE_TYPE scale_h = $SCALE_H, scale_w = $SCALE_W;
"""

CPP_NEAREST = (
    """\
// Nearest interpolation on the CPU: the columns to take are found once, then rows are gathered. Schedule: $SCHEDULE
"""
    + _CPP_HEAD
    + """\
  int32_t column[COLUMNS];
  for (int64_t ow = 0; ow < out_width; ++ow)
    column[ow] = static_cast<int32_t>(source_index(ow, width, out_width, scale_w));
#pragma omp parallel for schedule(static) if (lines * out_width >= GRAIN)
  for (int64_t line = 0; line < lines; ++line) {
    const int64_t plane = line / out_height, h = source_index(line % out_height, height, out_height, scale_h);
    const $T* source = input + (plane * height + h) * width;
    $T* result = out + line * out_width;
    for (int64_t ow = 0; ow < out_width; ++ow) result[ow] = source[column[ow]];
  }
  return 0;
}
"""
)

CPP_LINEAR = (
    """\
// Bilinear interpolation on the CPU: columns and their weights are found once for all rows. Schedule: $SCHEDULE
"""
    + _CPP_HEAD
    + """\
  int32_t left[COLUMNS], right[COLUMNS];
  $ACC weight_right[COLUMNS];
  for (int64_t ow = 0; ow < out_width; ++ow) {
    const $ACC position = source_position(ow, scale_w);
    left[ow] = static_cast<int32_t>(std::min(static_cast<int64_t>(position), width - 1));
    right[ow] = static_cast<int32_t>(std::min<int64_t>(left[ow] + 1, width - 1));
    weight_right[ow] = std::min(std::max(position - static_cast<$ACC>(left[ow]), $ACC(0)), $ACC(1));
  }
#pragma omp parallel for schedule(static) if (lines * out_width >= GRAIN)
  for (int64_t line = 0; line < lines; ++line) {
    const int64_t plane = line / out_height;
    const $ACC position = source_position(line % out_height, scale_h);
    const int64_t top = std::min(static_cast<int64_t>(position), height - 1), bottom = std::min(top + 1, height - 1);
    const $ACC weight_bottom = std::min(std::max(position - static_cast<$ACC>(top), $ACC(0)), $ACC(1));
    const $T* upper = input + (plane * height + top) * width;
    const $T* lower = input + (plane * height + bottom) * width;
    $T* result = out + line * out_width;
#pragma omp simd
    for (int64_t ow = 0; ow < out_width; ++ow) {
      const $ACC w = weight_right[ow];
      const $ACC above = $UPPER_LEFT * (1 - w) + $UPPER_RIGHT * w, below = $LOWER_LEFT * (1 - w) + $LOWER_RIGHT * w;
      const $ACC mixed = above * (1 - weight_bottom) + below * weight_bottom;
      result[ow] = $STORE;
    }
  }
  return 0;
}
"""
)

CUDA = """\
// $MODE interpolation: a thread makes VEC adjacent outputs of a row and writes them at once. Schedule: $SCHEDULE
constexpr int THREADS = $THREADS;
using Index = $INDEX;

template <int N>
struct alignas(N * sizeof($T)) Pack { $T item[N]; };

$INDEX_FUNCTION

template <int VEC>
__global__ void __launch_bounds__(THREADS)
interpolate_kernel(const $T* __restrict__ input, $T* __restrict__ out, Index vectors, int height, int width,
                   int out_height, int out_width, $SCALE_TYPE scale_h, $SCALE_TYPE scale_w) {
  const Index vector = static_cast<Index>(blockIdx.x) * THREADS + threadIdx.x;
  if (vector >= vectors) return;
  const int row_vectors = out_width / VEC;
  const Index line = vector / row_vectors, plane = line / out_height;
  const int first = static_cast<int>(vector - line * row_vectors) * VEC;
  const int oh = static_cast<int>(line - plane * out_height);
  Pack<VEC> pack;
$BODY
  *reinterpret_cast<Pack<VEC>*>(out + vector * VEC) = pack;
}

$HEAD
  (void)workspace;
  const int height = int($H), width = int($W), out_height = int($OUT_H), out_width = int($OUT_W);
  const int64_t count = $PLANES * out_height * out_width;
  if (count == 0) return 0;
  const $SCALE_TYPE scale_h = $SCALE_H, scale_w = $SCALE_W;
  const int64_t vectors = out_width % $VECTOR == 0 ? count / $VECTOR : count;
  const unsigned blocks = unsigned((vectors + THREADS - 1) / THREADS);
  if (out_width % $VECTOR == 0)
    interpolate_kernel<$VECTOR><<<blocks, THREADS, 0, stream>>>(
        input, out, Index(vectors), height, width, out_height, out_width, scale_h, scale_w);
  else
    interpolate_kernel<1><<<blocks, THREADS, 0, stream>>>(
        input, out, Index(vectors), height, width, out_height, out_width, scale_h, scale_w);
  return cudaGetLastError();
}
"""

CUDA_NEAREST_BODY = """\
  const $T* source = input + (plane * height + source_index(oh, height, out_height, scale_h)) * width;
#pragma unroll
  for (int k = 0; k < VEC; ++k) pack.item[k] = source[source_index(first + k, width, out_width, scale_w)];"""

CUDA_LINEAR_BODY = """\
  const $ACC position_h = source_position(oh, scale_h);
  const int top = min(static_cast<int>(position_h), height - 1), bottom = min(top + 1, height - 1);
  const $ACC weight_bottom = min(max(position_h - $ACC(top), $ACC(0)), $ACC(1));
  const $T* upper = input + (plane * height + top) * width;
  const $T* lower = input + (plane * height + bottom) * width;
#pragma unroll
  for (int k = 0; k < VEC; ++k) {
    const $ACC position = source_position(first + k, scale_w);
    const int left = min(static_cast<int>(position), width - 1), right = min(left + 1, width - 1);
    const $ACC w = min(max(position - $ACC(left), $ACC(0)), $ACC(1));
    const $ACC above = $ACC(upper[left]) * (1 - w) + $ACC(upper[right]) * w;
    const $ACC below = $ACC(lower[left]) * (1 - w) + $ACC(lower[right]) * w;
    pack.item[k] = $T(above * (1 - weight_bottom) + below * weight_bottom);
  }"""
