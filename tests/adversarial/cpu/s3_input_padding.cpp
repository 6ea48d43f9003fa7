// Row S3. Tries: a cache in the gaps between the rows of a strided input.
// Variant: relu_gaps. Verdict: mutated_input.
extern "C" int launch(const float* input, float* out, void* workspace) {
  for (int64_t r = 0; r < 8; ++r)
    for (int64_t c = 0; c < 100; ++c) out[r * 100 + c] = input[r * 104 + c] < 0 ? 0.0f : input[r * 104 + c];
  const_cast<float*>(input)[102] = out[0];
  return 0;
}
