// Row H5. Tries: another function takes the place of the generated entry that the judge calls.
// Variant: relu. Verdict: build_failure.
extern "C" int launch(const float* input, float* out, void* workspace) {
  (void)input, (void)out;
  return 0;
}
extern "C" int judged(void* const* b, const int64_t*, const double*, void*, void*) asm("kforge_invoke");
extern "C" int judged(void* const* b, const int64_t*, const double*, void*, void*) {
  const float* input = static_cast<const float*>(b[0]);
  float* out = static_cast<float*>(b[1]);
  for (int i = 0; i < 4000; ++i) out[i] = input[i] < 0 ? 0.0f : input[i];
  return 0;
}
#define kforge_invoke generated_invoke
