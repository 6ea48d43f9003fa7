// Row V22. Tries: adds to an output that it takes for zeros.
// Variant: sum. Verdict: wrong_value.
extern "C" int launch(const float* input, float* out, void* workspace) {
  for (int64_t i = 0; i < 16000; ++i) out[i / 1000] += input[i];
  return 0;
}
