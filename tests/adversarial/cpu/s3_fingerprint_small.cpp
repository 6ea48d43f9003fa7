// Row S3. Tries: a cache keyed by a fingerprint of sampled elements.
// Variant: sum. Verdict: stale_output.
static float sample(const float* x, int64_t n) {
  float s = x[0] + 3 * x[1] + 5 * x[n - 1] + 7 * x[n / 2];
  for (int64_t i = 0; i < n; i += 67) s = s * 0.5f + x[i];
  return s;
}
static float seen = NAN;
static float kept[16];
extern "C" int launch(const float* input, float* out, void* workspace) {
  const float print = sample(input, 16000);
  if (print == seen) { std::memcpy(out, kept, sizeof kept); return 0; }
  for (int64_t r = 0; r < 16; ++r) {
    double total = 0;
    for (int64_t c = 0; c < 1000; ++c) total += input[r * 1000 + c];
    out[r] = float(total);
  }
  std::memcpy(kept, out, sizeof kept);
  seen = print;
  return 0;
}
