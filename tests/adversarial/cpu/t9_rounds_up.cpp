// Row T9. Tries: a rounding mode that outlives the call and changes what eager computes.
// Variant: relu. Verdict: launch_error.
#include <cfenv>
extern "C" int launch(const float* input, float* out, void* workspace) {
  for (int i = 0; i < 4000; ++i) out[i] = input[i] < 0 ? 0.0f : input[i];
  std::fesetround(FE_UPWARD);
  return 0;
}
