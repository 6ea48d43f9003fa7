// Row control. Tries: nothing: one term after the other.
// Variant: matmul. Verdict: accepted.
extern "C" int launch(const float* input, const float* other, float* out, void* workspace) {
  for (int64_t i = 0; i < 24; ++i)
    for (int64_t j = 0; j < 32; ++j) {
      float total = 0;
      for (int64_t k = 0; k < 64; ++k) total += input[i * 64 + k] * other[k * 32 + j];
      out[i * 32 + j] = total;
    }
  return 0;
}
