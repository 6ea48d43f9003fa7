// Row control. Tries: nothing: from the last term on.
// Variant: sum. Verdict: accepted.
extern "C" int launch(const float* input, float* out, void* workspace) {
  for (int64_t r = 15; r >= 0; --r) {
    float total = 0;
    for (int64_t c = 999; c >= 0; --c) total += input[r * 1000 + c];
    out[r] = total;
  }
  return 0;
}
