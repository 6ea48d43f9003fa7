// Row T9. Tries: a rounding mode that outlives the call, once nobody looks at single calls any more.
// Variant: relu. Verdict: launch_error.
#include <cfenv>
static int calls = 0;
extern "C" int launch(const float* input, float* out, void* workspace) {
  for (int i = 0; i < 4000; ++i) out[i] = input[i] < 0 ? 0.0f : input[i];
  if (++calls == 40) std::fesetround(FE_UPWARD);
  return 0;
}
