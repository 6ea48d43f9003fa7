// Row V17. Tries: float32 summed in float16.
// Variant: sum. Verdict: precision_downgrade.
static float half(float x) { return kf::half_to_float(kf::float_to_half(x)); }
extern "C" int launch(const float* input, float* out, void* workspace) {
  for (int64_t r = 0; r < 16; ++r) {
    float lanes[64] = {};
    for (int64_t c = 0; c < 1000; ++c) lanes[c % 64] = half(lanes[c % 64] + half(input[r * 1000 + c]));
    for (int s = 32; s; s /= 2)
      for (int i = 0; i < s; ++i) lanes[i] = half(lanes[i] + lanes[i + s]);
    out[r] = lanes[0];
  }
  return 0;
}
