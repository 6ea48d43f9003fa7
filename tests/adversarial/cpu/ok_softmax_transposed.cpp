// Row control. Tries: nothing: honours the strides.
// Variant: softmax_transposed. Verdict: accepted.
extern "C" int launch(const float* input, float* out, void* workspace) {
  for (int64_t r = 0; r < 40; ++r) {
    float top = -INFINITY, total = 0;
    for (int64_t c = 0; c < 33; ++c) top = std::fmax(top, input[c * 40 + r]);
    for (int64_t c = 0; c < 33; ++c) total += std::exp(input[c * 40 + r] - top);
    for (int64_t c = 0; c < 33; ++c)
      out[r * v::out_stride[0] + c * v::out_stride[1]] = std::exp(input[c * 40 + r] - top) / total;
  }
  return 0;
}
