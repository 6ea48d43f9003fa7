// Row control. Tries: nothing: honours the row pitch.
// Variant: relu_gaps. Verdict: accepted.
extern "C" int launch(const float* input, float* out, void* workspace) {
  for (int64_t r = 0; r < 8; ++r)
    for (int64_t c = 0; c < 100; ++c) out[r * 100 + c] = input[r * 104 + c] < 0 ? 0.0f : input[r * 104 + c];
  return 0;
}
