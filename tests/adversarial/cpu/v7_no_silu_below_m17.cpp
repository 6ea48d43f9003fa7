// Row V7. Tries: 0 below -17.
// Variant: silu. Verdict: wrong_value.
extern "C" int launch(const float* input, float* out, void* workspace) {
  for (int64_t i = 0; i < 4000; ++i) {
    const float x = input[i];
    out[i] = x < -17.0f && std::isfinite(x) ? 0.0f : x / (1.0f + std::exp(-x));
  }
  return 0;
}
