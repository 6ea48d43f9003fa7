// Row control. Tries: nothing: OpenMP threads, from the end.
// Variant: relu. Verdict: accepted.
extern "C" int launch(const float* input, float* out, void* workspace) {
#pragma omp parallel for schedule(dynamic, 64)
  for (int64_t j = 0; j < 4000; ++j) {
    const int64_t i = 3999 - j;
    out[i] = input[i] < 0 ? 0.0f : input[i];
  }
  return 0;
}
