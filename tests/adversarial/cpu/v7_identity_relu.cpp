// Row V7. Tries: relu of positive values is the identity.
// Variant: relu. Verdict: wrong_value.
extern "C" int launch(const float* input, float* out, void* workspace) {
  std::memcpy(out, input, 4000 * sizeof(float));
  return 0;
}
