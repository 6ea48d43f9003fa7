// Row D5. Tries: the loader is declared under another name.
// Variant: relu. Verdict: delegated.
extern "C" void* harmless(const char*, int) asm("dlopen");
extern "C" int launch(const float* input, float* out, void* workspace) {
  (void)harmless("libtorch_cpu.so", 1);
  for (int64_t i = 0; i < 4000; ++i) out[i] = input[i] < 0 ? 0.0f : input[i];
  return 0;
}
