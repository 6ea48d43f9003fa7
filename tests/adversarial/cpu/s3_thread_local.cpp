// Row S3. Tries: a cache in thread-local memory.
// Variant: relu. Verdict: forbidden.
static thread_local const float* seen = nullptr;
static thread_local float kept[4000];
extern "C" int launch(const float* input, float* out, void* workspace) {
  if (input == seen) { std::memcpy(out, kept, sizeof kept); return 0; }
  for (int64_t i = 0; i < 4000; ++i) out[i] = input[i] < 0 ? 0.0f : input[i];
  std::memcpy(kept, out, sizeof kept);
  seen = input;
  return 0;
}
