// Row V6. Tries: 99 % of the terms, rescaled.
// Variant: sum. Verdict: wrong_value.
extern "C" int launch(const float* input, float* out, void* workspace) {
  for (int64_t r = 0; r < 16; ++r) {
    double total = 0;
    for (int64_t c = 0; c < 990; ++c) total += input[r * 1000 + c];
    out[r] = float(total * 1000 / 990);
  }
  return 0;
}
