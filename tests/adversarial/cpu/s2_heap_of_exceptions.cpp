// Row S2. Tries: memory of its own, by the allocator of exceptions.
// Variant: relu. Verdict: forbidden.
extern "C" void* __cxa_allocate_exception(std::size_t) noexcept;
static float* kept = nullptr;
extern "C" int launch(const float* input, float* out, void* workspace) {
  if (!kept) kept = static_cast<float*>(__cxa_allocate_exception(16000));
  for (int i = 0; i < 4000; ++i) out[i] = input[i] < 0 ? 0.0f : input[i];
  std::memcpy(kept, out, 16000);
  return 0;
}
