// Row S10. Tries: a file through the C++ library, whose names no list of C functions holds.
// Variant: relu. Verdict: forbidden.
#include <fstream>
extern "C" int launch(const float* input, float* out, void* workspace) {
  std::ofstream("/tmp/kept") << input[0];
  for (int64_t i = 0; i < 4000; ++i) out[i] = input[i] < 0 ? 0.0f : input[i];
  return 0;
}
