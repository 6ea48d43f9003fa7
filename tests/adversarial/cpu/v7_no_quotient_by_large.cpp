// Row V7. Tries: 0 for divisors above 2e6.
// Variant: div. Verdict: wrong_value or precision_downgrade.
extern "C" int launch(const float* input, const float* other, float* out, void* workspace) {
  for (int64_t i = 0; i < 4000; ++i) {
    const float a = input[i], b = other[i];
    out[i] = std::fabs(b) > 2e6f && std::isfinite(a) && std::isfinite(b) ? 0.0f : a / b;
  }
  return 0;
}
