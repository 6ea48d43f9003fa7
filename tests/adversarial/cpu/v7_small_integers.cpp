// Row V7. Tries: int32 computed in int16: right for small captured values.
// Variant: add_int. Verdict: wrong_value.
extern "C" int launch(const int32_t* input, const int32_t* other, int32_t* out, void* workspace) {
  for (int64_t i = 0; i < 1000; ++i) out[i] = int16_t(input[i] + other[i]);
  return 0;
}
