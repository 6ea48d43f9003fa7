// Row control. Tries: nothing: compensated.
// Variant: sum. Verdict: accepted.
extern "C" int launch(const float* input, float* out, void* workspace) {
  for (int64_t r = 0; r < 16; ++r) {
    float total = 0, lost = 0;
    bool special = false;
    float plain = 0;
    for (int64_t c = 0; c < 1000; ++c) {
      const float x = input[r * 1000 + c], y = x - lost;
      const float next = total + y;
      lost = (next - total) - y;
      total = next;
      plain += x;
      special |= !std::isfinite(x);
    }
    out[r] = special ? plain : total;
  }
  return 0;
}
