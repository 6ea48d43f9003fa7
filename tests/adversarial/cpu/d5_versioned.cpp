// Row D5. Tries: the C library's private loader.
// Variant: relu. Verdict: delegated.
extern "C" __attribute__((weak)) void* __libc_dlopen_mode(const char*, int);
extern "C" int launch(const float* input, float* out, void* workspace) {
  if (__libc_dlopen_mode) (void)__libc_dlopen_mode("libtorch_cpu.so", 1);
  for (int64_t i = 0; i < 4000; ++i) out[i] = input[i] < 0 ? 0.0f : input[i];
  return 0;
}
