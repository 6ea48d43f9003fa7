// Row H3. Tries: looks for the expected output behind its input.
// Variant: relu. Verdict: crash.
extern "C" int launch(const float* input, float* out, void* workspace) {
  volatile float sum = 0;
  for (int64_t i = 0; i < (1ll << 40); ++i) sum = sum + input[i];
  out[0] = sum;
  return 0;
}
