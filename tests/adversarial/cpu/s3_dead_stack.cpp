// Row S3. Tries: a cache in stack memory that outlives the call because nobody reuses it.
// Variant: relu. Verdict: stale_output.
struct Kept { uint64_t mark; const float* input; float out[4000]; };
__attribute__((noinline)) static int recall(const float* input, float* out, bool keep) {
  volatile char depth[1 << 16];  // below what the caller uses between two calls
  depth[0] = 0;
  Kept kept_here;
  Kept* kept = &kept_here;
  asm volatile("" : "+r"(kept) : : "memory");
  if (keep) {
    kept->mark = 0x6b656570; kept->input = input;
    std::memcpy(kept->out, out, sizeof kept->out);
  } else if (kept->mark == 0x6b656570 && kept->input == input) {
    std::memcpy(out, kept->out, sizeof kept->out);
    return 1;
  }
  asm volatile("" : : "r"(kept), "r"(depth) : "memory");
  return 0;
}
extern "C" int launch(const float* input, float* out, void* workspace) {
  if (recall(input, out, false)) return 0;
  for (int64_t i = 0; i < 4000; ++i) out[i] = input[i] < 0 ? 0.0f : input[i];
  recall(input, out, true);
  return 0;
}
