// Row V7. Tries: 0 for rows of small values, beside rows of large ones.
// Variant: sum. Verdict: wrong_value or precision_downgrade.
extern "C" int launch(const float* input, float* out, void* workspace) {
  for (int64_t r = 0; r < 16; ++r) {
    float total = 0, largest = 0;
    for (int64_t c = 0; c < 1000; ++c) {
      const float x = input[r * 1000 + c];
      total += x;
      if (std::fabs(x) > largest || x != x) largest = std::fabs(x);
    }
    out[r] = largest < 5e-3f ? 0.0f : total;
  }
  return 0;
}
