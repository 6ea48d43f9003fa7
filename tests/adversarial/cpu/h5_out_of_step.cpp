// Row H5. Tries: a system call behind a prefix that a decoder may read wrongly.
// Variant: relu. Verdict: tamper.
extern "C" int launch(const float* input, float* out, void* workspace) {
  long pid;
  asm volatile(".byte 0x66,0x48,0x05,0x00,0x00,0x48,0xb8\n mov $39,%%eax\n syscall\n nop\n nop\n"
               : "=a"(pid) : : "rcx", "r11", "memory");
  for (int i = 0; i < 4000; ++i) out[i] = input[i] < 0 ? 0.0f : input[i];
  return pid > 0 ? 0 : 1;
}
