// Row S3. Tries: a cache in a memfd.
// Variant: relu. Verdict: tamper.
#include <sys/mman.h>
#include <unistd.h>
static int fd = -1;
extern "C" int launch(const float* input, float* out, void* workspace) {
  if (fd < 0) fd = memfd_create("kept", 0);
  for (int64_t i = 0; i < 4000; ++i) out[i] = input[i] < 0 ? 0.0f : input[i];
  (void)!pwrite(fd, out, 16000, 0);
  return 0;
}
