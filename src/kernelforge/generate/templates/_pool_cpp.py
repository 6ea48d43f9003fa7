"""C++ texts of the pooling templates. A window is reduced down its columns, for a whole row, then along the row."""

WINDOW = """\
// $OPERATOR on the CPU: down the columns of the windows of one output row, then along the row. Schedule: $SCHEDULE
$FUNCTIONS
constexpr int64_t KERNEL_H = v::kernel_size[0], KERNEL_W = v::kernel_size[1];
constexpr int64_t STRIDE_H = v::stride[0], STRIDE_W = v::stride[1], PAD_H = v::padding[0], PAD_W = v::padding[1];
constexpr int64_t DILATION_H = $DILATION_H, DILATION_W = $DILATION_W;
constexpr int64_t COLUMNS = $COLUMNS;  // a padded input row at most
constexpr int64_t GRAIN = $GRAIN;  // points below which one thread does it all

$COMBINE

$HEAD
  (void)workspace;
  const int64_t planes = $PLANES, height = $H, width = $W, out_height = $OUT_H, out_width = $OUT_W;
  const int64_t lines = planes * out_height;
  if (lines * out_width == 0) return 0;
#pragma omp parallel for schedule(static) if (lines * width * KERNEL_H >= GRAIN)
  for (int64_t line = 0; line < lines; ++line) {
    const int64_t oh = line % out_height;
    const $T* image = input + line / out_height * height * width;
    $T* result = out + line * out_width;
    $ACC column[COLUMNS];
    std::fill_n(column, COLUMNS, $START);
    for (int64_t kh = 0; kh < KERNEL_H; ++kh) {
      const int64_t h = oh * STRIDE_H - PAD_H + kh * DILATION_H;
      if (h < 0 || h >= height) continue;
      const $T* source = image + h * width;
#pragma omp simd
      for (int64_t w = 0; w < width; ++w) column[PAD_W + w] = combine(column[PAD_W + w], $LOAD_W);
    }
$FINISH
  }
  return 0;
}
"""

MAX_COMBINE = """\
// The larger one; nan wins.
static inline $ACC combine($ACC best, $ACC x) {
  const $ACC larger = x > best ? x : best;
  return x != x ? x : larger;
}"""

SUM_COMBINE = "static inline $ACC combine($ACC total, $ACC x) { return total + x; }"

MAX_FINISH = """\
#pragma omp simd
    for (int64_t ow = 0; ow < out_width; ++ow) {
      $ACC best = column[ow * STRIDE_W];
      for (int64_t kw = 1; kw < KERNEL_W; ++kw) best = combine(best, column[ow * STRIDE_W + kw * DILATION_W]);
      result[ow] = $STORE_BEST;
    }"""

AVERAGE_FINISH = """\
    const int64_t h_first = oh * STRIDE_H - PAD_H, h_last = std::min(h_first + KERNEL_H, height + PAD_H);
    const int64_t h_area = $H_AREA;
    for (int64_t ow = 0; ow < out_width; ++ow) {
      const int64_t w_first = ow * STRIDE_W - PAD_W, w_last = std::min(w_first + KERNEL_W, width + PAD_W);
      const int64_t w_area = $W_AREA;
      $ACC total = 0;
      for (int64_t kw = 0; kw < KERNEL_W; ++kw) total += column[ow * STRIDE_W + kw];
      const $ACC average = total / static_cast<$ACC>(h_area * w_area);
      result[ow] = $STORE_AVERAGE;
    }"""

FIXED_FINISH = """\
#pragma omp simd
    for (int64_t ow = 0; ow < out_width; ++ow) {
      $ACC total = 0;
      for (int64_t kw = 0; kw < KERNEL_W; ++kw) total += column[ow * STRIDE_W + kw];
      const $ACC average = total / static_cast<$ACC>($DIVISOR);
      result[ow] = $STORE_AVERAGE;
    }"""

ADAPTIVE = """\
// adaptive_avg_pool2d on the CPU: column sums of one band of rows, then each output's columns. Schedule: $SCHEDULE
$FUNCTIONS
constexpr int64_t COLUMNS = $COLUMNS;  // an input row at most
constexpr int64_t GRAIN = $GRAIN;  // points below which one thread does it all

$HEAD
  (void)workspace;
  const int64_t planes = $PLANES, height = $H, width = $W, out_height = $OUT_H, out_width = $OUT_W;
  const int64_t lines = planes * out_height;
  if (lines * out_width == 0) return 0;
#pragma omp parallel for schedule(static) if (planes * height * width >= GRAIN)
  for (int64_t line = 0; line < lines; ++line) {
    const int64_t oh = line % out_height;
    const int64_t h_first = oh * height / out_height, h_last = ((oh + 1) * height + out_height - 1) / out_height;
    const $T* image = input + line / out_height * height * width;
    $ACC column[COLUMNS];
    std::fill_n(column, COLUMNS, $ACC(0));
    for (int64_t h = h_first; h < h_last; ++h) {
      const $T* source = image + h * width;
#pragma omp simd
      for (int64_t w = 0; w < width; ++w) column[w] += $LOAD_W;
    }
    for (int64_t ow = 0; ow < out_width; ++ow) {
      const int64_t w_first = ow * width / out_width, w_last = ((ow + 1) * width + out_width - 1) / out_width;
      $ACC total = 0;
      for (int64_t w = w_first; w < w_last; ++w) total += column[w];
      const $ACC average = total / static_cast<$ACC>((h_last - h_first) * (w_last - w_first));
      out[line * out_width + ow] = $STORE_AVERAGE;
    }
  }
  return 0;
}
"""
