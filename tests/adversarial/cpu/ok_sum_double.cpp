// Row control. Tries: nothing: float64 inside.
// Variant: sum. Verdict: accepted.
extern "C" int launch(const float* input, float* out, void* workspace) {
  for (int64_t r = 0; r < 16; ++r) {
    double total = 0;
    for (int64_t c = 0; c < 1000; ++c) total += input[r * 1000 + c];
    out[r] = float(total);
  }
  return 0;
}
