// Row control. Tries: nothing: blocks of 16 terms, outer loop over terms, threads.
// Variant: matmul. Verdict: accepted.
extern "C" int launch(const float* input, const float* other, float* out, void* workspace) {
#pragma omp parallel for
  for (int64_t i = 0; i < 24; ++i) {
    for (int64_t j = 0; j < 32; ++j) out[i * 32 + j] = 0;
    for (int64_t k0 = 48; k0 >= 0; k0 -= 16) {
      float part[32] = {};
      for (int64_t k = k0; k < k0 + 16; ++k)
        for (int64_t j = 0; j < 32; ++j) part[j] += input[i * 64 + k] * other[k * 32 + j];
      for (int64_t j = 0; j < 32; ++j) out[i * 32 + j] += part[j];
    }
  }
  return 0;
}
