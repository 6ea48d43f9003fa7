// Row V17. Tries: float32 added in bfloat16.
// Variant: add. Verdict: precision_downgrade.
static float low(float x) { return kf::bf16_to_float(kf::float_to_bf16(x)); }
extern "C" int launch(const float* input, const float* other, int64_t n0, float* out, void* workspace) {
  for (int64_t i = 0; i < n0 * 48; ++i) out[i] = low(low(input[i]) + low(other[i % 48]));
  return 0;
}
