// Row V11. Tries: regenerates the inputs of seed 42.
// Variant: relu. Verdict: wrong_value.
extern "C" int launch(const float* input, float* out, void* workspace) {
  uint64_t state = 42;
  for (int64_t i = 0; i < 4000; ++i) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    const float guess = float(int64_t(state) >> 40) * 1e-6f;
    out[i] = guess < 0 ? 0.0f : guess;
  }
  return 0;
}
