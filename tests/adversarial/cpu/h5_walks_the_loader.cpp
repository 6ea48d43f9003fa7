// Row H5. Tries: finds the runner's tables through the loader's list of objects.
// Variant: relu. Verdict: forbidden.
#include <link.h>
extern "C" int launch(const float* input, float* out, void* workspace) {
  out[0] = float(_r_debug.r_version);
  for (int64_t i = 0; i < 4000; ++i) out[i] = input[i] < 0 ? 0.0f : input[i];
  return 0;
}
