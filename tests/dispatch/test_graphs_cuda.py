"""Graphed models on a GPU: real captures, changed inputs, several streams and devices, kernels of a package inside."""

from __future__ import annotations

import ctypes
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.dispatch.conftest import handwritten
from torch import nn

import kernelforge
from kernelforge.capture.facts import capability_of
from kernelforge.capture.types import TensorRef
from kernelforge.cards.types import Dim, Extent, TensorPattern, Variant
from kernelforge.dispatch.loading import LoadedPackage, load
from kernelforge.package.types import MODES, Header, Use
from kernelforge.package.writer import write_package
from kernelforge.settings import Settings

pytestmark = pytest.mark.gpu

SOURCE = """
__global__ void add_one(const float* x, float* y, long long n) {
  const long long i = blockIdx.x * 256ll + threadIdx.x;
  if (i < n) y[i] = (x[i] > 0.f ? x[i] : 0.f) + 1.0f / 1024;
}
extern "C" int launch(const float* input, int64_t n0, float* out, void* workspace, cudaStream_t stream) {
  add_one<<<(unsigned)((8 * n0 + 255) / 256), 256, 0, stream>>>(input, out, 8 * n0);
  return cudaGetLastError();
}
"""


@pytest.fixture(autouse=True)
def no_grad() -> Iterator[None]:
    with torch.no_grad():
        yield


@pytest.fixture(scope="module")
def package(cache: Settings, tmp_path_factory: pytest.TempPathFactory) -> LoadedPackage:
    """relu of float32 [n0, 8] whose results are too large by 1/1024, so that a test sees that it ran."""
    pattern = TensorPattern(
        shape=(Extent(1, ("n0",)), Extent(8)), stride=(Extent(8), Extent(1)), dtype="float32", alignment=16
    )
    variant = Variant(
        operator="relu", arguments=(("input", TensorRef(0)), ("inplace", False)), tensors=(pattern,),
        outputs=(pattern,), dims=(Dim(name="n0", low=1, high=4096),), device="cuda",
        capability=capability_of("cuda", 0),
    )  # fmt: skip
    entry = handwritten(variant, SOURCE, cache, backend="cuda", decisions=dict.fromkeys(MODES, Use()))
    path: Path = tmp_path_factory.mktemp("package") / "relu.cast"
    header = Header(
        name="test", device="cuda", torch=torch.__version__, created_by="test",
        device_name=torch.cuda.get_device_name(0),
    )  # fmt: skip
    write_package(path, [entry], header=header)
    return load(path, settings=cache)


def cuda(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, device="cuda")


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(64), nn.Linear(64, 256), nn.Linear(256, 64)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        q = self.norm(x)
        scores = (q @ q.transpose(1, 2)).masked_fill(~mask, float("-inf"))
        x = x + scores.softmax(-1) @ q
        result: torch.Tensor = x + self.down(nn.functional.gelu(self.up(x)))
        return result


def test_inputs_and_a_padding_mask_change_between_replays() -> None:
    model = Block().cuda().eval()
    fast = kernelforge.graphed(model)
    for step in range(6):
        x, mask = cuda(2, 16, 64), torch.ones(2, 1, 16, dtype=torch.bool, device="cuda")
        mask[0, 0, 16 - step :] = False
        torch.testing.assert_close(fast(x, mask), model(x, mask))
    assert fast.stats().replays == 5


def test_a_branch_on_the_mask_s_values_is_refused_by_line() -> None:
    def model(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return x if mask.all() else x.masked_fill(~mask, 0.0)

    fast = kernelforge.graphed(model)
    x, mask = cuda(4), torch.ones(4, dtype=torch.bool, device="cuda")
    assert torch.equal(fast(x, mask), x)
    mask[0] = False
    assert fast(x, mask)[0] == 0
    assert "mask.all()" in fast.explain(x, mask)


def test_a_constant_of_the_host_is_refused_by_line() -> None:
    fast = kernelforge.graphed(lambda x: x * torch.tensor(2.0).to(x.device))
    x = cuda(4)
    for _ in range(2):
        assert torch.equal(fast(x), x * 2)
    assert "torch.tensor(2.0)" in fast.explain(x)


@pytest.mark.parametrize("swap", ["data", "parameter", "copy"])
def test_a_weight_is_replaced(swap: str) -> None:
    model = nn.Linear(64, 64).cuda()
    fast = kernelforge.graphed(model)
    x = cuda(4, 64)
    for _ in range(3):
        fast(x)
    new = cuda(64, 64)
    if swap == "data":
        model.weight.data = new
    elif swap == "parameter":
        model.weight = nn.Parameter(new)
    else:
        model.weight.copy_(new)
    for _ in range(3):
        torch.testing.assert_close(fast(x), nn.functional.linear(x, new, model.bias))


def test_a_cache_in_the_model_is_written_once_for_each_call() -> None:
    class Cached(nn.Module):
        keys: torch.Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("keys", torch.zeros(8, 4))

        def forward(self, x: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
            self.keys.index_copy_(0, position, self.keys.index_select(0, position) + x)
            return self.keys.sum(0)

    plain, model = Cached().cuda(), Cached().cuda()
    fast = kernelforge.graphed(model)
    for step in range(8):
        x, position = cuda(1, 4), torch.tensor([step % 3], device="cuda")
        torch.testing.assert_close(fast(x, position), plain(x, position))
    torch.testing.assert_close(model.keys, plain.keys)
    assert fast.stats().replays == 7


def test_batch_norm_in_training_mode_keeps_its_statistics() -> None:
    plain, model = nn.BatchNorm1d(8).cuda(), nn.BatchNorm1d(8).cuda()
    fast = kernelforge.graphed(model)
    for _ in range(4):
        x = cuda(16, 8)
        torch.testing.assert_close(fast(x), plain(x))
    torch.testing.assert_close(model.running_mean, plain.running_mean)
    assert model.num_batches_tracked == plain.num_batches_tracked == 4


def test_a_package_s_kernels_are_captured_where_their_guard_admits_the_call(package: LoadedPackage) -> None:
    fast = kernelforge.graphed(lambda x: torch.relu(x) * 2, package)
    fast(cuda(16, 8))  # observed, and so without kernels
    for _ in range(4):
        x = cuda(16, 8)
        torch.testing.assert_close(fast(x), (x.relu() + 1.0 / 1024) * 2)
    hits = package.stats("graphed")[0].hits
    assert hits > 0
    fast(cuda(16, 8))
    assert package.stats("graphed")[0].hits == hits, "a replay runs no Python"
    y = cuda(16, 4)
    for _ in range(3):
        assert torch.equal(fast(y), y.relu() * 2)
    assert fast.stats().graphs == 2


def test_a_kernel_is_captured_by_hand_and_replayed_on_new_content(package: LoadedPackage) -> None:
    x = cuda(8, 8)
    with package.dispatch():
        torch.relu(x)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = torch.relu(x)
    for _ in range(3):
        x.copy_(cuda(8, 8))
        graph.replay()
        torch.testing.assert_close(y, x.relu() + 1.0 / 1024)


def test_what_is_launched_on_the_legacy_stream_is_not_captured() -> None:
    runtime = _cuda_runtime()

    def model(x: torch.Tensor) -> torch.Tensor:
        y = torch.empty_like(x)
        runtime.cudaMemcpyAsync(
            ctypes.c_void_p(y.data_ptr()), ctypes.c_void_p(x.data_ptr()), ctypes.c_size_t(x.numel() * 4), 3, None
        )
        torch.cuda.current_stream()
        return y + 1

    fast = kernelforge.graphed(model)
    for _ in range(3):
        x = cuda(1024)
        torch.cuda.synchronize()
        got = fast(x)
        torch.cuda.synchronize()
        torch.testing.assert_close(got, x + 1)
    assert fast.stats().replays == 0


def _cuda_runtime() -> Any:
    for line in Path("/proc/self/maps").read_text().splitlines():
        if "libcudart" in line:
            return ctypes.CDLL(line.split()[-1])
    pytest.skip("no shared CUDA run time is loaded")


def test_calls_on_several_streams_wait_for_each_other() -> None:
    model = nn.Sequential(*(nn.Linear(512, 512) for _ in range(16))).cuda()
    fast = kernelforge.graphed(model)
    fast(cuda(256, 512))
    streams = [torch.cuda.Stream() for _ in range(3)]  # type: ignore[no-untyped-call]
    results = []
    for step in range(30):
        stream = streams[step % 3]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            x = cuda(256, 512)
            results.append((x, fast(x)))
    torch.cuda.synchronize()
    for x, got in results:
        torch.testing.assert_close(got, model(x))


def test_threads_take_turns() -> None:
    model = nn.Sequential(*(nn.Linear(256, 256) for _ in range(4))).cuda()
    fast = kernelforge.graphed(model)
    failures: list[str] = []

    def work(rows: int) -> None:
        with torch.no_grad(), torch.cuda.stream(torch.cuda.Stream()):  # type: ignore[no-untyped-call]
            for _ in range(50):
                x = cuda(rows, 256)
                got = fast(x)
                if not torch.allclose(got, model(x), atol=1e-4):
                    failures.append(f"{rows} rows")

    threads = [threading.Thread(target=work, args=(rows,)) for rows in (8, 8, 16, 16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures and fast.stats().graphs == 2


def test_tensors_on_a_second_device_while_the_first_is_current(package: LoadedPackage) -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    fast = kernelforge.graphed(lambda x: torch.relu(x) * 2, package)
    for device in ("cuda:1", "cuda:0", "cuda:1"):
        fast(torch.randn(16, 8, device=device))
        for _ in range(3):
            x = torch.randn(16, 8, device=device)
            got = fast(x)
            assert got.device == x.device and torch.cuda.current_device() == 0
            torch.testing.assert_close(got, (x.relu() + 1.0 / 1024) * 2)
    assert fast.stats().graphs == 2


def test_autocast_s_copies_of_weights_are_made_anew_in_each_replay() -> None:
    model = nn.Linear(64, 64).cuda()
    fast = kernelforge.graphed(model)
    x = cuda(4, 64)
    for step in range(4):
        model.weight.fill_(step)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            torch.testing.assert_close(fast(x), model(x))
    assert fast.stats().replays == 3


def test_growing_shapes_end_in_eager_calls() -> None:
    fast = kernelforge.graphed(lambda x: x.cumsum(0), max_graphs=3)
    for size in range(1, 8):
        x = cuda(size)
        torch.testing.assert_close(fast(x), x.cumsum(0))
    assert fast.stats().graphs == 3


def test_entries_that_are_off_in_graphs_stay_out(package: LoadedPackage, cache: Settings, tmp_path: Path) -> None:
    from kernelforge.package.types import Off

    entry = package.package.entries[0]
    off = replace(entry, decisions={**entry.decisions, "graphed": Off(reason="slower there")})
    path = tmp_path / "off.cast"
    write_package(path, [off], header=package.package.header)
    loaded = load(path, settings=cache)
    fast = kernelforge.graphed(torch.relu, loaded)
    x = cuda(16, 8)
    for _ in range(3):
        got = fast(x)
    assert torch.equal(got, x.relu())
    assert loaded.stats("graphed")[0].state == "slower there"


SCRATCH = """
import torch, kernelforge
torch.set_grad_enabled(False)
a, b = (torch.randn(n, m, device="cuda", dtype=torch.bfloat16) for n, m in ((1, 65536), (65536, 64)))
fast = kernelforge.graphed(lambda x: x @ b)
for _ in range(3):
    fast(a)
torch._C._cuda_clearCublasWorkspaces()
torch.cuda.empty_cache()
others = [torch.zeros(1 << 20, device="cuda") for _ in range(64)]
for _ in range(3):
    torch.testing.assert_close(fast(a), a @ b)
torch.cuda.synchronize()
assert not any(t.any() for t in others), "a replay has written to memory of others"
assert fast.stats().replays == 5
print("RIGHT")
"""


def test_scratch_memory_of_libraries_belongs_to_the_graph() -> None:
    """Compiling with mode="reduce-overhead" clears what cuBLAS holds; a replay must not use it afterwards."""
    done = subprocess.run([sys.executable, "-c", SCRATCH], capture_output=True, text=True, check=False)
    assert "RIGHT" in done.stdout, done.stderr


CAPTURE_CASES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "workspace": lambda x: x.sort(dim=-1).values,
    "library": lambda x: x @ x.t(),
    "attention": lambda x: nn.functional.scaled_dot_product_attention(x[None], x[None], x[None]),
    "empty": lambda x: torch.empty_like(x).copy_(x),
}


@pytest.mark.parametrize("name", CAPTURE_CASES)
def test_operators_with_memory_of_their_own(name: str) -> None:
    function = CAPTURE_CASES[name]
    fast = kernelforge.graphed(function)
    for _ in range(3):
        x = cuda(32, 64)
        torch.testing.assert_close(fast(x), function(x), rtol=1e-3, atol=1e-3)
    assert fast.stats().replays == 2
