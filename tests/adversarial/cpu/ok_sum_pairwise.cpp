// Row control. Tries: nothing: pairwise.
// Variant: sum. Verdict: accepted.
static float pairwise(const float* x, int64_t n) {
  if (n <= 8) {
    float total = 0;
    for (int64_t i = 0; i < n; ++i) total += x[i];
    return total;
  }
  return pairwise(x, n / 2) + pairwise(x + n / 2, n - n / 2);
}
extern "C" int launch(const float* input, float* out, void* workspace) {
  for (int64_t r = 0; r < 16; ++r) out[r] = pairwise(input + r * 1000, 1000);
  return 0;
}
