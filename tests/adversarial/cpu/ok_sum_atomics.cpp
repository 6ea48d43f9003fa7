// Row control. Tries: nothing: threads and atomics, another order at each call.
// Variant: sum. Verdict: accepted.
extern "C" int launch(const float* input, float* out, void* workspace) {
  for (int64_t r = 0; r < 16; ++r) out[r] = 0;
#pragma omp parallel for schedule(dynamic, 1)
  for (int64_t part = 0; part < 160; ++part) {
    float total = 0;
    for (int64_t c = 0; c < 100; ++c) total += input[part * 100 + c];
#pragma omp atomic
    out[part / 10] += total;
  }
  return 0;
}
