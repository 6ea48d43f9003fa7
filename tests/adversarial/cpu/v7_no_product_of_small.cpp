// Row V7. Tries: 0 for a factor below 1e-9.
// Variant: mul. Verdict: wrong_value.
extern "C" int launch(const float* input, const float* other, float* out, void* workspace) {
  for (int64_t i = 0; i < 4000; ++i) {
    const float a = input[i], b = other[i];
    out[i] = std::fabs(a) < 1e-9f && std::isfinite(b) ? 0.0f : a * b;
  }
  return 0;
}
