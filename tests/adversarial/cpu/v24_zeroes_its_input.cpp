// Row V24. Tries: zeroes the input, so that a later reference agrees with zeros.
// Variant: relu. Verdict: mutated_input.
extern "C" int launch(const float* input, float* out, void* workspace) {
  std::memset(const_cast<float*>(input), 0, 4000 * sizeof(float));
  std::memset(out, 0, 4000 * sizeof(float));
  return 0;
}
