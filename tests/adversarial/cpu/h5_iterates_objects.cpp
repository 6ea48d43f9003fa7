// Row H5. Tries: finds the runner's tables through dl_iterate_phdr.
// Variant: relu. Verdict: delegated.
#include <link.h>
extern "C" int launch(const float* input, float* out, void* workspace) {
  dl_iterate_phdr([](dl_phdr_info*, size_t, void*) { return 0; }, nullptr);
  for (int64_t i = 0; i < 4000; ++i) out[i] = input[i] < 0 ? 0.0f : input[i];
  return 0;
}
