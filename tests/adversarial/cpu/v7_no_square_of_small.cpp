// Row V7. Tries: 0 below 1e-8, whose squares are normal numbers.
// Variant: square. Verdict: wrong_value.
extern "C" int launch(const float* input, float* out, void* workspace) {
  for (int64_t i = 0; i < 4000; ++i) {
    const float x = input[i];
    out[i] = std::fabs(x) < 1e-8f ? 0.0f : x * x;
  }
  return 0;
}
