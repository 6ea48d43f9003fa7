"""Sources of the torch ABI that tests build. Each takes torch's headers half a minute: share them, and the cache."""

from __future__ import annotations

RELU = """\
// relu, and eight numbers whose first says how to misbehave
#include <torch/extension.h>
#include <sys/socket.h>
#include <unistd.h>

static torch::Tensor plain(const torch::Tensor& x) {
  auto out = torch::empty_like(x);
  const float* from = x.data_ptr<float>();
  float* to = out.data_ptr<float>();
#pragma omp parallel for if (x.numel() > 100000)
  for (int64_t i = 0; i < x.numel(); ++i) to[i] = from[i] < 0 ? 0.0f : from[i];
  return out;
}

torch::Tensor launch(torch::Tensor x) {
  TORCH_CHECK(x.is_contiguous(), "x must be contiguous");
  switch (x.numel() == 8 ? static_cast<int>(x.data_ptr<float>()[0]) : 0) {
    case 1: TORCH_CHECK(false, "no such luck");
    case 2: return plain(x).to(torch::kDouble);
    case 3: return plain(x).reshape({-1});
    case 4: return plain(x).t().contiguous().t();
    case 5: x.add_(1); return plain(x);
    case 6: return x;
    case 7: *reinterpret_cast<volatile int*>(8) = 1; return x;
    case 8: for (;;) usleep(1000);
    case 9: throw 42;
    case 10: return torch::Tensor();
    case 11: _exit(0);
    case 14: for (int fd = 3; fd < 4096; ++fd) send(fd, "[1]", 3, 0); for (;;) usleep(1000);
    case 15: return torch::empty({int64_t{1} << 50});
  }
  return plain(x);
}
"""

WRONG = """\
#include <ATen/ATen.h>

at::Tensor launch(const at::Tensor& input) { return input.clamp_min(0.25); }
"""

BROKEN = "#include <torch/extension.h>\ntorch::Tensor launch(torch::Tensor x) { return x.nothing(); }\n"

CUDA = """\
#include <torch/extension.h>
#include <cuda_runtime.h>

__global__ void relu(const float* x, float* y, int64_t n) {
  const int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x;
  if (i < n) y[i] = x[i] < 0 ? 0.0f : x[i];
}

torch::Tensor launch(torch::Tensor x) {
  auto out = torch::empty_like(x);
  const int64_t n = x.numel();
  relu<<<(n + 255) / 256, 256>>>(x.data_ptr<float>(), out.data_ptr<float>(), n);
  return out;
}
"""
