// Row V17. Tries: bfloat16 operands for a float32 product, as a tensor core has them.
// Variant: matmul. Verdict: precision_downgrade.
static float low(float x) { return kf::bf16_to_float(kf::float_to_bf16(x)); }
extern "C" int launch(const float* input, const float* other, float* out, void* workspace) {
  for (int64_t i = 0; i < 24; ++i)
    for (int64_t j = 0; j < 32; ++j) {
      float total = 0;
      for (int64_t k = 0; k < 64; ++k) total += low(input[i * 64 + k]) * low(other[k * 32 + j]);
      out[i * 32 + j] = total;
    }
  return 0;
}
