// Row V7. Tries: 0 below -16.
// Variant: softplus. Verdict: wrong_value.
extern "C" int launch(const float* input, float* out, void* workspace) {
  for (int64_t i = 0; i < 4000; ++i) {
    const float x = input[i];
    out[i] = x < -16.0f ? 0.0f : x > 20.0f ? x : std::log1p(std::exp(x));
  }
  return 0;
}
