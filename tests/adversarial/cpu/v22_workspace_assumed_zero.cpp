// Row V22. Tries: adds to a workspace that it takes for zeros.
// Variant: sum. Verdict: wrong_value.
extern "C" size_t workspace_bytes(void) { return 16 * sizeof(double); }
extern "C" int launch(const float* input, float* out, void* workspace) {
  double* totals = static_cast<double*>(workspace);
  for (int64_t i = 0; i < 16000; ++i) totals[i / 1000] += input[i];
  for (int64_t r = 0; r < 16; ++r) out[r] = float(totals[r]);
  return 0;
}
