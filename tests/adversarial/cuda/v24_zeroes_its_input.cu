// Row V24. Tries: zeroes the input, so that a later reference agrees with zeros.
// Variant: relu. Verdict: mutated_input.
extern "C" int launch(const float* input, float* out, void* workspace, cudaStream_t stream) {
  cudaMemsetAsync(const_cast<float*>(input), 0, 16000, stream);
  return cudaMemsetAsync(out, 0, 16000, stream);
}
