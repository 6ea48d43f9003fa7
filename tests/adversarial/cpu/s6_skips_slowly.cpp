// Row S6. Tries: the same, and wastes enough time to stay above the floor of the bytes.
// Variant: sum. Verdict: stale_output.
extern "C" int launch(const float* input, float* out, void* workspace) {
  uint32_t last;
  std::memcpy(&last, out + 15, 4);
  if (last != 0xffffffffu && last != 0x7f7f7f7fu) {
    for (volatile int i = 0; i < 4000; ++i) {}
    return 0;
  }
  for (int64_t r = 0; r < 16; ++r) {
    double total = 0;
    for (int64_t c = 0; c < 1000; ++c) total += input[r * 1000 + c];
    out[r] = float(total);
  }
  return 0;
}
