// Row control. Tries: nothing: 16-bit data, float32 inside.
// Variant: softmax_bf16. Verdict: accepted.
extern "C" int launch(const uint16_t* input, int64_t n0, int64_t n1, uint16_t* out, void* workspace) {
  for (int64_t r = 0; r < n0; ++r) {
    const uint16_t* x = input + r * n1;
    float top = -INFINITY, total = 0;
    for (int64_t c = 0; c < n1; ++c) top = std::fmax(top, kf::bf16_to_float(x[c]));
    for (int64_t c = 0; c < n1; ++c) total += std::exp(kf::bf16_to_float(x[c]) - top);
    for (int64_t c = 0; c < n1; ++c)
      out[r * n1 + c] = kf::float_to_bf16(std::exp(kf::bf16_to_float(x[c]) - top) / total);
  }
  return 0;
}
