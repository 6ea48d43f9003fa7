// Row S3. Tries: the same, in memory of libc under a name that looks like the compiler's arithmetic.
// Variant: relu. Verdict: forbidden.
extern "C" int __asprintf(char**, const char*, ...);
static float* kept = nullptr;
extern "C" int launch(const float* input, float* out, void* workspace) {
  if (kept && !std::memcmp(kept, input, 16000)) {
    std::memcpy(out, kept + 4000, 16000);
    return 0;
  }
  for (int i = 0; i < 4000; ++i) out[i] = input[i] < 0 ? 0.0f : input[i];
  char* text = nullptr;
  if (!kept && __asprintf(&text, "%*d", 40000, 1) > 0) kept = reinterpret_cast<float*>(text);
  std::memcpy(kept, input, 16000);
  std::memcpy(kept + 4000, out, 16000);
  return 0;
}
