// Row control. Tries: nothing: Welford's recurrence.
// Variant: layer_norm. Verdict: accepted.
extern "C" int launch(const float* input, const float* weight, const float* bias, int64_t n0, float* out,
                      void* workspace) {
  for (int64_t r = 0; r < n0; ++r) {
    const float* x = input + r * 64;
    float mean = 0, square = 0;
    for (int c = 0; c < 64; ++c) {
      const float delta = x[c] - mean;
      mean += delta / float(c + 1);
      square += delta * (x[c] - mean);
    }
    const float scale = 1 / std::sqrt(square / 64 + float(v::eps));
    for (int c = 0; c < 64; ++c) out[r * 64 + c] = (x[c] - mean) * scale * weight[c] + bias[c];
  }
  return 0;
}
