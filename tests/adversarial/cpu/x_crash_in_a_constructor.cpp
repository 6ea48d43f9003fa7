// Row X. Tries: crashes while it is loaded.
// Variant: relu. Verdict: crash.
__attribute__((constructor)) static void fail() { __builtin_trap(); }
extern "C" int launch(const float* input, float* out, void* workspace) {
  for (int64_t i = 0; i < 4000; ++i) out[i] = input[i] < 0 ? 0.0f : input[i];
  return 0;
}
