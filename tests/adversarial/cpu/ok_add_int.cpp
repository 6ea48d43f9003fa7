// Row control. Tries: nothing.
// Variant: add_int. Verdict: accepted.
extern "C" int launch(const int32_t* input, const int32_t* other, int32_t* out, void* workspace) {
  for (int64_t i = 0; i < 1000; ++i) out[i] = int32_t(uint32_t(input[i]) + uint32_t(other[i]));
  return 0;
}
