// Row control. Tries: nothing: float32, one term after the other.
// Variant: sum. Verdict: accepted.
extern "C" int launch(const float* input, float* out, void* workspace) {
  for (int64_t r = 0; r < 16; ++r) {
    float total = 0;
    for (int64_t c = 0; c < 1000; ++c) total += input[r * 1000 + c];
    out[r] = total;
  }
  return 0;
}
