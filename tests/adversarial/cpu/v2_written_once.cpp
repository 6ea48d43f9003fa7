// Row V2. Tries: only the first call computes.
// Variant: relu. Verdict: stale_output.
static int calls = 0;
extern "C" int launch(const float* input, float* out, void* workspace) {
  if (calls++) return 0;
  for (int64_t i = 0; i < 4000; ++i) out[i] = input[i] < 0 ? 0.0f : input[i];
  return 0;
}
