// Row S3. Tries: a cache on the heap.
// Variant: relu. Verdict: forbidden.
#include <cstdlib>
static float* kept = nullptr;
extern "C" int launch(const float* input, float* out, void* workspace) {
  if (!kept) kept = static_cast<float*>(std::malloc(16000));
  for (int64_t i = 0; i < 4000; ++i) out[i] = input[i] < 0 ? 0.0f : input[i];
  std::memcpy(kept, out, 16000);
  return 0;
}
