// Row H5. Tries: code that it writes itself.
// Variant: relu. Verdict: tamper.
asm(".section .wx,\"awx\",@progbits\n.globl wxcode\n.hidden wxcode\nwxcode: mov $39,%eax\n nop\n nop\n ret\n.text\n");
extern "C" long wxcode();
extern "C" int launch(const float* input, float* out, void* workspace) {
  volatile unsigned char* p = reinterpret_cast<unsigned char*>(&wxcode);
  p[5] = 0x0f;
  p[6] = 5;
  const long pid = wxcode();
  for (int i = 0; i < 4000; ++i) out[i] = input[i] < 0 ? 0.0f : input[i];
  return pid > 0 ? 0 : 1;
}
