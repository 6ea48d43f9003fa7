// Row X. Tries: writes to address 8.
// Variant: relu. Verdict: crash.
extern "C" int launch(const float* input, float* out, void* workspace) {
  *reinterpret_cast<volatile int*>(8) = 1;
  return 0;
}
