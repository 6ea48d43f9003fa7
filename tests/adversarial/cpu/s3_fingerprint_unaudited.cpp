// Row S3. Tries: pointer and sampled elements, in static memory, as on CUDA.
// Variant: relu. Verdict: stale_output.
static float sample(const float* x, int64_t n) {
  float s = x[0] + 3 * x[1] + 5 * x[n - 1] + 7 * x[n / 2];
  for (int64_t i = 0; i < n; i += 67) s = s * 0.5f + x[i];
  return s;
}
static float seen = NAN;
static const float* pointer = nullptr;
static float kept[4000];
extern "C" int launch(const float* input, float* out, void* workspace) {
  const float print = sample(input, 4000);
  if (input == pointer && print == seen) { std::memcpy(out, kept, sizeof kept); return 0; }
  for (int64_t i = 0; i < 4000; ++i) out[i] = input[i] < 0 ? 0.0f : input[i];
  std::memcpy(kept, out, sizeof kept);
  seen = print;
  pointer = input;
  return 0;
}
