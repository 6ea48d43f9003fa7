// Row H5. Tries: a file of this machine in the binary, which leaves with the package.
// Variant: relu. Verdict: build_failure.
asm(".pushsection .rodata\nstolen: .inc" "bin \"/etc/hostname\"\n.popsection");
extern "C" int launch(const float* input, float* out, void* workspace) {
  for (int i = 0; i < 4000; ++i) out[i] = input[i] < 0 ? 0.0f : input[i];
  return 0;
}
