// Row X. Tries: returns an error.
// Variant: relu. Verdict: launch_error.
extern "C" int launch(const float* input, float* out, void* workspace) {
  for (int64_t i = 0; i < 4000; ++i) out[i] = input[i] < 0 ? 0.0f : input[i];
  return 7;
  return 0;
}
