// Row V23. Tries: strides ignored: a transposed input read row by row.
// Variant: softmax_transposed. Verdict: wrong_value.
extern "C" int launch(const float* input, float* out, void* workspace) {
  for (int64_t r = 0; r < 40; ++r) {
    const float* x = input + r * 33;
    float* y = out + r * 33;
    float top = -INFINITY, total = 0;
    for (int64_t c = 0; c < 33; ++c) top = std::fmax(top, x[c]);
    for (int64_t c = 0; c < 33; ++c) { y[c] = std::exp(x[c] - top); total += y[c]; }
    for (int64_t c = 0; c < 33; ++c) y[c] /= total;
  }
  return 0;
}
