"""On a GPU: one operator from capture to dispatch with a kernel written by hand, and the runner's promises."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import torch

import kernelforge
from kernelforge import forge

pytestmark = pytest.mark.gpu

SOFTMAX = """
__global__ void rows(const __nv_bfloat16* x, __nv_bfloat16* y, int columns) {
  const __nv_bfloat16* in = x + int64_t{blockIdx.x} * columns;
  __nv_bfloat16* out = y + int64_t{blockIdx.x} * columns;
  __shared__ float shared[32];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
  float top = -INFINITY;
  for (int i = threadIdx.x; i < columns; i += blockDim.x) top = fmaxf(top, __bfloat162float(in[i]));
  for (int d = 16; d; d /= 2) top = fmaxf(top, __shfl_xor_sync(~0u, top, d));
  if (lane == 0) shared[warp] = top;
  __syncthreads();
  top = shared[0];
  for (int w = 1; w < warps; ++w) top = fmaxf(top, shared[w]);
  __syncthreads();
  float sum = 0;  // nan where the row has a nan (which fmaxf ignores) or an inf: exp(nan), exp(inf - inf)
  for (int i = threadIdx.x; i < columns; i += blockDim.x) {
    sum += expf(__bfloat162float(in[i]) - top);
  }
  for (int d = 16; d; d /= 2) sum += __shfl_xor_sync(~0u, sum, d);
  if (lane == 0) shared[warp] = sum;
  __syncthreads();
  sum = 0;
  for (int w = 0; w < warps; ++w) sum += shared[w];
  for (int i = threadIdx.x; i < columns; i += blockDim.x)
    out[i] = __float2bfloat16(expf(__bfloat162float(in[i]) - top) / sum);
}
extern "C" int launch(const __nv_bfloat16* input, int64_t n0, __nv_bfloat16* out, void*, cudaStream_t stream) {
  if (n0 == 0) return 0;
  rows<<<n0, 256, 0, stream>>>(input, out, int(v::input_shape[1]));
  return cudaGetLastError();
}
"""


class Softmax(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x, dim=-1)


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("cuda") / "softmax.kforge"
    samples = [(torch.randn(rows, 1024, device="cuda", dtype=torch.bfloat16),) for rows in (4096, 8192)]
    with torch.no_grad():
        report = kernelforge.capture(Softmax().cuda(), samples=samples, project=path)
    assert report.device == "cuda" and report.variants == 1
    return path


def test_a_right_kernel_goes_from_the_judge_to_dispatch(project: Path, tmp_path: Path) -> None:
    source = tmp_path / "kernel.cu"
    source.write_text(SOFTMAX)
    report = forge.evaluate_file(source, project=project, variant="softmax")
    assert report.outcome == "accepted", report
    assert report.audit == "generated"
    exported = forge.export_project(project, output=tmp_path / "softmax.cast")
    package = kernelforge.load(tmp_path / "softmax.cast")
    x = torch.randn(5000, 1024, device="cuda", dtype=torch.bfloat16)
    want = torch.softmax(x, dim=-1)
    with torch.no_grad(), package.dispatch():
        got = torch.softmax(x, dim=-1)
    torch.testing.assert_close(got, want)
    hits = sum(row.hits for row in package.stats())
    assert hits == exported.entries, (report, exported, package.stats())


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (("/ sum)", "/ sum * 1.05f)"), "wrong_value"),
        (("float top = -INFINITY;", "out[columns] = in[0]; float top = -INFINITY;"), "oob"),
        (("rows<<<n0, 256", "rows<<<n0, 2048"), "launch_error"),
        (("float sum = 0;", "while (true) {} float sum = 0;"), "timeout"),
        (("float top = -INFINITY;", "float top = *(volatile float*)8;"), "crash"),
    ],
)
def test_wrong_kernels_are_rejected_with_their_reason(
    project: Path, tmp_path: Path, change: tuple[str, str], reason: str
) -> None:
    source = tmp_path / "kernel.cu"
    source.write_text(SOFTMAX.replace(*change))
    report = forge.evaluate_file(source, project=project, variant="softmax")
    assert report.outcome == "rejected", report
    assert report.reason in {reason, "launch_error"} if reason == "crash" else report.reason == reason, report


def test_the_runner_starts_within_a_second(project: Path, tmp_path: Path) -> None:
    from kernelforge.build.types import Artifact
    from kernelforge.executors.types import Limits
    from kernelforge.generate.types import Candidate
    from kernelforge.runner.session import RunnerSession
    from kernelforge.settings import load_settings
    from kernelforge.store.project import Project
    from kernelforge.workshop import open_workshop

    settings = load_settings()
    record = Project.open(project).record("softmax")
    candidate = Candidate(variant_id=record.variant.id, source=SOFTMAX, backend="cuda", generator="test")
    with open_workshop("cuda", settings) as workshop:
        artifact = workshop.backend.build(candidate, record.variant)
    assert isinstance(artifact, Artifact)
    seconds = []
    for _ in range(3):
        started = time.monotonic()
        with RunnerSession(
            artifact.path, device="cuda", limits=Limits(wall_s=20, memory_bytes=8 << 30), threads=1, settings=settings
        ) as session:
            seconds.append(time.monotonic() - started)
            maps = Path(f"/proc/{session.pid}/maps").read_text()
            assert "python" not in maps and "torch" not in maps
    print(f"runner with its CUDA context starts in {sorted(seconds)[1]:.2f} s")
    assert sorted(seconds)[1] < 1.0
