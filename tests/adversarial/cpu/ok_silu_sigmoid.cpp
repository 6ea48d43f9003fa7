// Row control. Tries: nothing: as a product.
// Variant: silu. Verdict: accepted.
extern "C" int launch(const float* input, float* out, void* workspace) {
  for (int64_t i = 0; i < 4000; ++i) {
    const float x = input[i];
    out[i] = x * (1.0f / (1.0f + std::exp(-x)));
  }
  return 0;
}
