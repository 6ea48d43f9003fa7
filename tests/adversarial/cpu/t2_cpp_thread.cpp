// Row T2. Tries: the same through std::thread.
// Variant: relu. Verdict: forbidden.
#include <thread>
extern "C" int launch(const float* input, float* out, void* workspace) {
  std::thread([=] {
    for (int64_t i = 0; i < 4000; ++i) out[i] = input[i] < 0 ? 0.0f : input[i];
  }).detach();
  return 0;
}
