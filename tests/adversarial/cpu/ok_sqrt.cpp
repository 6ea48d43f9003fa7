// Row control. Tries: nothing.
// Variant: sqrt. Verdict: accepted.
extern "C" int launch(const float* input, float* out, void* workspace) {
  for (int64_t i = 0; i < 4000; ++i) {
    const float x = input[i];
    out[i] = std::sqrt(x);
  }
  return 0;
}
