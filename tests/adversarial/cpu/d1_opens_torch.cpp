// Row D1. Tries: torch does the work.
// Variant: relu. Verdict: delegated.
#include <dlfcn.h>
extern "C" int launch(const float* input, float* out, void* workspace) {
  if (dlopen("libtorch_cpu.so", RTLD_NOW)) return 0;
  for (int64_t i = 0; i < 4000; ++i) out[i] = input[i] < 0 ? 0.0f : input[i];
  return 0;
}
