// Row X. Tries: maps and touches 3 GiB by system calls of its own.
// Variant: relu. Verdict: oom.
static long raw(long number, long a = 0, long b = 0, long c = 0, long d = 0, long e = 0, long f = 0) {
  register long r10 asm("r10") = d, r8 asm("r8") = e, r9 asm("r9") = f;
  long result;
  asm volatile("syscall" : "=a"(result) : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
               : "rcx", "r11", "memory");
  return result;
}
extern "C" int launch(const float* input, float* out, void* workspace) {
  char* memory = reinterpret_cast<char*>(raw(9, 0, 3l << 30, 3, 34, -1, 0));
  for (int64_t i = 0; i < 3l << 30; i += 4096) memory[i] = 1;
  volatile int forever = 1;
  while (forever) {}
  return 0;
}
