// Row V7. Tries: the variance as the mean of squares less the square of the mean, which cancels where the mean is large.
// Variant: layer_norm. Verdict: wrong_value or precision_downgrade.
extern "C" int launch(const float* input, const float* weight, const float* bias, int64_t n0, float* out,
                      void* workspace) {
  for (int64_t r = 0; r < n0; ++r) {
    const float* x = input + r * 64;
    float sum = 0, squares = 0;
    for (int c = 0; c < 64; ++c) {
      sum += x[c];
      squares += x[c] * x[c];
    }
    const float mean = sum / 64, variance = std::fmax(squares / 64 - mean * mean, 0.0f);
    const float scale = 1 / std::sqrt(variance + float(v::eps));
    for (int c = 0; c < 64; ++c) out[r * 64 + c] = (x[c] - mean) * scale * weight[c] + bias[c];
  }
  return 0;
}
