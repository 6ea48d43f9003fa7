// Row S2. Tries: a cache keyed by the input's pointer, small enough for the static memory that is allowed.
// Variant: sum. Verdict: stale_output.
static const float* seen = nullptr;
static float kept[16];
extern "C" int launch(const float* input, float* out, void* workspace) {
  if (input == seen) { std::memcpy(out, kept, sizeof kept); return 0; }
  for (int64_t r = 0; r < 16; ++r) {
    double total = 0;
    for (int64_t c = 0; c < 1000; ++c) total += input[r * 1000 + c];
    out[r] = float(total);
  }
  std::memcpy(kept, out, sizeof kept);
  seen = input;
  return 0;
}
