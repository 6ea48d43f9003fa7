// Row V7. Tries: nothing from 2e4 on, where the results are small beside their neighbours'.
// Variant: reciprocal. Verdict: wrong_value or precision_downgrade.
extern "C" int launch(const float* input, float* out, void* workspace) {
  for (int64_t i = 0; i < 4000; ++i) {
    const float x = input[i];
    out[i] = std::fabs(x) > 2e4f && !std::isnan(x) ? 0.0f : 1.0f / x;
  }
  return 0;
}
