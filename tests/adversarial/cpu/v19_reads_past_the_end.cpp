// Row V19. Tries: whole blocks are read, what lies past the end is multiplied by 0.
// Variant: sum. Verdict: wrong_value.
extern "C" int launch(const float* input, float* out, void* workspace) {
  for (int64_t r = 0; r < 16; ++r) {
    double total = 0;
    for (int64_t c = 0; c < 1024; ++c) total += (c < 1000) * input[r * 1000 + c];
    out[r] = float(total);
  }
  return 0;
}
