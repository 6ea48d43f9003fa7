// Row V16. Tries: every element 9 % too large: inside a relative tolerance of 0.1.
// Variant: sum. Verdict: wrong_value.
extern "C" int launch(const float* input, float* out, void* workspace) {
  for (int64_t r = 0; r < 16; ++r) {
    double total = 0;
    for (int64_t c = 0; c < 1000; ++c) total += input[r * 1000 + c];
    out[r] = float(total * 1.09);
  }
  return 0;
}
