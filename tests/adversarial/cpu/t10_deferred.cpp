// Row T10. Tries: each call does the work of the call before.
// Variant: sum. Verdict: wrong_value.
static const float* before = nullptr;
static float* target = nullptr;
extern "C" int launch(const float* input, float* out, void* workspace) {
  const float* mine = input;
  float* own = out;
  if (before) {
    input = before;
    out = target;
  for (int64_t r = 0; r < 16; ++r) {
      double total = 0;
      for (int64_t c = 0; c < 1000; ++c) total += input[r * 1000 + c];
      out[r] = float(total);
    }
  }
  before = mine;
  target = own;
  return 0;
}
