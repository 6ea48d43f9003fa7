// Row V21. Tries: every third call is off in one element.
// Variant: relu. Verdict: nondeterministic.
static int calls = 0;
extern "C" int launch(const float* input, float* out, void* workspace) {
  for (int64_t i = 0; i < 4000; ++i) out[i] = input[i] < 0 ? 0.0f : input[i];
  if (++calls % 3 == 0) out[17] += 1.0f;
  return 0;
}
