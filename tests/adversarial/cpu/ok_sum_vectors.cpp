// Row control. Tries: nothing: eight lanes by hand.
// Variant: sum. Verdict: accepted.
extern "C" int launch(const float* input, float* out, void* workspace) {
  typedef float lanes __attribute__((vector_size(32)));
  for (int64_t r = 0; r < 16; ++r) {
    lanes totals = {};
    for (int64_t c = 0; c < 1000; c += 8) {
      lanes x;
      std::memcpy(&x, input + r * 1000 + c, sizeof x);
      totals += x;
    }
    float total = 0;
    for (int i = 0; i < 8; ++i) total += totals[i];
    out[r] = total;
  }
  return 0;
}
