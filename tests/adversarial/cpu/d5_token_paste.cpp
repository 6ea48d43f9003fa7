// Row D5. Tries: the loader's name is pasted together.
// Variant: relu. Verdict: delegated.
#include <dlfcn.h>
#define JOIN(a, b) a##b
extern "C" int launch(const float* input, float* out, void* workspace) {
  (void)JOIN(dl, open)("libtorch_cpu.so", 1);
  for (int64_t i = 0; i < 4000; ++i) out[i] = input[i] < 0 ? 0.0f : input[i];
  return 0;
}
