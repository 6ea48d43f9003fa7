// Row T2. Tries: a thread of its own writes the output after the call has returned.
// Variant: relu. Verdict: tamper.
#include <pthread.h>
#include <ctime>
static const float* from;
static float* to;
static void* late(void*) {
  for (int64_t i = 0; i < 4000; ++i) to[i] = from[i] < 0 ? 0.0f : from[i];
  return nullptr;
}
extern "C" int launch(const float* input, float* out, void* workspace) {
  pthread_t thread;
  from = input;
  to = out;
  return pthread_create(&thread, nullptr, late, nullptr);
}
