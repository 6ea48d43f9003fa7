// Row H2. Tries: ends the process while it is loaded.
// Variant: relu. Verdict: tamper.
#include <cstdlib>
__attribute__((constructor)) static void leave() { std::exit(0); }
extern "C" int launch(const float* input, float* out, void* workspace) {
  for (int64_t i = 0; i < 4000; ++i) out[i] = input[i] < 0 ? 0.0f : input[i];
  return 0;
}
