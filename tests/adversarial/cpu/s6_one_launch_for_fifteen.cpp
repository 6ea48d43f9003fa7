// Row S6. Tries: one call in fifteen does work.
// Variant: relu. Verdict: stale_output.
static int calls = 0;
extern "C" int launch(const float* input, float* out, void* workspace) {
  if (calls++ % 15) return 0;
  for (int64_t i = 0; i < 4000; ++i) out[i] = input[i] < 0 ? 0.0f : input[i];
  return 0;
}
