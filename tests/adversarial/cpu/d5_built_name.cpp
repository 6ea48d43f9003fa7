// Row D5. Tries: the function's name is put together at run time.
// Variant: relu. Verdict: delegated.
#include <dlfcn.h>
extern "C" int launch(const float* input, float* out, void* workspace) {
  char name[] = {'t' + 1, 'v', 'y', 0};
  for (char* c = name; *c; ++c) *c -= 2;
  (void)dlsym(nullptr, name);
  for (int64_t i = 0; i < 4000; ++i) out[i] = input[i] < 0 ? 0.0f : input[i];
  return 0;
}
