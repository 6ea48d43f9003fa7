// Row V21. Tries: threads add to one accumulator without synchronisation.
// Variant: sum. Verdict: wrong_value or nondeterministic.
extern "C" int launch(const float* input, float* out, void* workspace) {
  for (int64_t r = 0; r < 16; ++r) out[r] = 0;
  volatile float* shared = out;
#pragma omp parallel
  for (int64_t r = 0; r < 16; ++r) {
    float before = shared[r];
#pragma omp barrier  // each thread has read before another one writes, on a busy machine too
#pragma omp for
    for (int64_t c = 0; c < 1000; ++c) before += input[r * 1000 + c];
    shared[r] = before;
#pragma omp barrier
  }
  return 0;
}
