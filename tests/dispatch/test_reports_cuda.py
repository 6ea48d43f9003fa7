"""What `test_reports` lists, where a GPU is needed: streams, captured graphs, several devices, faults."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from tests.dispatch.conftest import MARK, N0, handwritten

from kernelforge.capture.facts import capability_of
from kernelforge.capture.types import TensorRef
from kernelforge.cards.types import Dim, Extent, TensorPattern, Variant
from kernelforge.dispatch.loading import LoadedPackage, load
from kernelforge.dispatch.quarantine import Quarantine
from kernelforge.dispatch.types import StatRow
from kernelforge.package.types import Entry, Header, Off, Use
from kernelforge.package.writer import write_package
from kernelforge.settings import Settings

pytestmark = [pytest.mark.gpu, pytest.mark.nvcc]

BODY = """
__global__ void kernel(const float* x, float* y, long long n) {
  const long long i = blockIdx.x * 256ll + threadIdx.x;
  if (i < n) y[i] = %s;
}
extern "C" int launch(const float* input, int64_t n0, float* out, void* workspace, cudaStream_t stream) {
  kernel<<<(unsigned)((8 * n0 + 255) / 256), %s, 0, stream>>>(input, out, 8 * n0);
  return cudaGetLastError();
}
"""
# Illegal: a fault on the device, but not at the least sizes, which are launched at load.
SOURCES: Mapping[str, str] = {
    "exp": BODY % ("expf(x[i]) + 1.0f / 1024", "256"),
    "log": BODY % ("n > 64 ? ((const volatile float*)16ull)[i] : logf(x[i])", "256"),
    "sqrt": BODY % ("sqrtf(x[i])", "2048"),
}
DECISIONS: Mapping[str, Use | Off] = {"eager": Use(), "graphed": Use(), "compiled": Off(reason="not measured")}
Make = Callable[..., LoadedPackage]


@pytest.fixture(scope="module")
def gpu_entries(cache: Settings) -> Mapping[str, Entry]:
    """exp is right, log faults from 9 rows on, sqrt cannot be launched; all of float32 [n0, 8]."""
    pattern = TensorPattern(shape=(N0, Extent(8)), stride=(Extent(8), Extent(1)), dtype="float32", alignment=16)
    found = {}
    for name, source in SOURCES.items():
        variant = Variant(
            operator=name, arguments=(("input", TensorRef(0)), ("inplace", False)), tensors=(pattern,),
            outputs=(pattern,), dims=(Dim(name="n0", low=1, high=1 << 20),), device="cuda",
            capability=capability_of("cuda", 0),
        )  # fmt: skip
        found[name] = handwritten(variant, source, cache, backend="cuda", decisions=DECISIONS)
    return found


@pytest.fixture
def path(gpu_entries: Mapping[str, Entry], tmp_path: Path) -> Callable[..., Path]:
    def write(*names: str) -> Path:
        header = Header(
            name="test", device="cuda", torch=torch.__version__, created_by="test",
            device_name=torch.cuda.get_device_name(0),
        )  # fmt: skip
        where = tmp_path / "kernels.cast"
        write_package(where, [gpu_entries[name] for name in names], header=header)
        return where

    return write


@pytest.fixture
def make_on_gpu(path: Callable[..., Path], settings: Settings) -> Make:
    return lambda *names: load(path(*names), settings=settings)


@pytest.fixture(autouse=True)
def no_grad() -> Iterator[None]:
    with torch.no_grad():
        yield


def row(package: LoadedPackage) -> StatRow:
    (only,) = package.stats()
    return only


def plain(x: torch.Tensor) -> torch.Tensor:
    result: torch.Tensor = torch.ops.aten.exp.default(x)
    return result


def captured(call: Callable[[], torch.Tensor]) -> tuple[torch.cuda.CUDAGraph, torch.Tensor]:
    graph = torch.cuda.CUDAGraph()
    # By default torch captures on a stream of the GPU that was current at the first capture of the process.
    with torch.cuda.graph(graph, stream=torch.cuda.Stream()):  # type: ignore[no-untyped-call]
        result = call()
    return graph, result


def test_a_replayed_graph_sees_changed_inputs(make_on_gpu: Make) -> None:
    """spiriMirror/libuipc#472: a kernel on another stream was left out of the graph, and its data stayed frozen."""
    package, x = make_on_gpu("exp"), torch.rand(64, 8, device="cuda")
    with package.dispatch():
        torch.exp(x)
        graph, out = captured(lambda: torch.exp(x))
        for _ in range(3):
            x.uniform_()
            graph.replay()
            torch.testing.assert_close(out, plain(x) + MARK)
            assert torch.equal(out, torch.exp(x)), "the replay and the dispatched kernel differ"
    assert row(package).misses == {}


def test_nothing_runs_for_the_first_time_inside_of_a_capture(make_on_gpu: Make) -> None:
    """Deciding, loading and launching for the first time may all do what a capture forbids, in this thread or not."""
    package = make_on_gpu("exp")
    x, other = torch.rand(64, 8, device="cuda"), torch.rand(48, 8, device="cuda")
    with package.dispatch():
        graph, out = captured(lambda: torch.exp(x))
        graph.replay()
        assert torch.equal(out, plain(x))
        assert (row(package).hits, row(package).misses) == (0, {"capture": 1})
        torch.exp(x)  # now the signature is known, and others are expected to fit
        graph, out = captured(lambda: torch.exp(other))
        graph.replay()
        assert torch.equal(out, plain(other))
        assert (row(package).hits, row(package).misses) == (1, {"capture": 2})
        torch.exp(other)
        graph, out = captured(lambda: torch.exp(other))
        other.uniform_()
        graph.replay()
        torch.testing.assert_close(out, plain(other) + MARK)
    assert (row(package).hits, row(package).misses) == (3, {"capture": 2})


def test_sizes_that_ran_by_a_guess_are_known_in_a_capture(make_on_gpu: Make) -> None:
    package = make_on_gpu("exp")
    tensors = [torch.rand(n, 8, device="cuda") for n in (1, 7, 33, 1000)]
    with package.dispatch():
        for _ in range(2):
            for x in tensors:
                torch.exp(x)
        graphs = [captured(lambda x=x: torch.exp(x)) for x in tensors]  # type: ignore[misc]
        for x, (graph, out) in zip(tensors, graphs, strict=True):
            x.uniform_()
            graph.replay()
            torch.testing.assert_close(out, plain(x) + MARK)
    assert (row(package).hits, row(package).misses) == (12, {})


def test_a_kernel_runs_on_the_current_stream(make_on_gpu: Make) -> None:
    """thu-ml/SageAttention#380: a kernel on the legacy stream read what the current one had not written yet."""
    package, x = make_on_gpu("exp"), torch.zeros(1 << 17, 8, device="cuda")
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    with package.dispatch():
        torch.exp(x)
        torch.cuda.synchronize()
        for value in (1.0, 2.0, 3.0):
            with torch.cuda.stream(side):
                torch.cuda._sleep(20_000_000)  # type: ignore[no-untyped-call]
                x.fill_(value)
                out = torch.exp(x)
            side.synchronize()
            torch.testing.assert_close(out, plain(torch.full_like(x, value)) + MARK)
    assert row(package).hits == 4


def test_memory_of_a_side_stream_is_kept_by_record_stream(make_on_gpu: Make) -> None:
    package = make_on_gpu("exp")
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    with package.dispatch():
        for _ in range(20):
            x = torch.rand(1 << 12, 8, device="cuda")
            want = plain(x) + MARK
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                torch.cuda._sleep(2_000_000)  # type: ignore[no-untyped-call]
                out = torch.exp(x)
            x.record_stream(side)
            del x
            torch.rand(1 << 12, 8, device="cuda")  # would take the block if it were free
            torch.cuda.current_stream().wait_stream(side)
            out.record_stream(torch.cuda.current_stream())
            torch.testing.assert_close(out, want)
    assert row(package).hits == 20


def test_a_tensor_on_another_gpu_than_the_current_one(make_on_gpu: Make) -> None:
    """linkedin/Liger-Kernel#1303: launched on the current GPU, with the addresses of another one."""
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    if capability_of("cuda", 1) != capability_of("cuda", 0):
        pytest.skip("the second GPU is of another kind")
    package = make_on_gpu("exp")
    with package.dispatch():
        for device in (0, 1, 1, 0, 1):
            for rows in (4, 1000):
                x = torch.rand(rows, 8, device=f"cuda:{device}")
                out = torch.exp(x)
                assert out.device == x.device
                assert torch.cuda.current_device() == 0
                torch.testing.assert_close(out, plain(x) + MARK)
        second = torch.rand(64, 8, device="cuda:1")
        torch.exp(second)
        with torch.cuda.device(1):
            graph, out = captured(lambda: torch.exp(second))
            second.uniform_()
            graph.replay()
            torch.testing.assert_close(out, plain(second) + MARK)
        with pytest.raises(RuntimeError, match="same device"):
            torch.add(second, torch.rand(64, 8, device="cuda:0"))
    assert row(package).hits == 12
    assert row(package).misses == {}


def test_an_entry_that_cannot_be_launched_is_off_at_load(make_on_gpu: Make) -> None:
    package = make_on_gpu("exp", "sqrt")
    reasons = {state.entry.variant.operator: state.reason for state in package.states}
    assert reasons["exp"] == ""
    assert reasons["sqrt"].startswith("its first launch failed with error")  # 9 or 1, as the driver has it
    x = torch.rand(4, 8, device="cuda")
    with package.dispatch():
        assert torch.equal(torch.sqrt(x), torch.ops.aten.sqrt.default(x))


FAULT = """
import sys
from dataclasses import replace
from pathlib import Path
import torch
from kernelforge.dispatch.loading import load
from kernelforge.settings import load_settings

package = load(sys.argv[1], settings=replace(load_settings(), cache_dir=Path(sys.argv[2])))
states = {s.entry.variant.operator: s.reason for s in package.states}
print("STATES", states)
x = torch.rand(64, 8, device="cuda")
try:
    with torch.no_grad(), package.dispatch():
        torch.exp(x)
        y = torch.log(x)
        torch.cuda.synchronize()
    print("FINE", torch.equal(y, x.log()))
except Exception as error:
    print("ERROR", type(error).__name__, error, *getattr(error, "__notes__", []))
"""


@pytest.mark.parametrize("blocking", [True, False])
def test_a_fault_of_the_device_is_named(
    path: Callable[..., Path], settings: Settings, gpu_entries: Mapping[str, Entry], tmp_path: Path, blocking: bool
) -> None:
    """antirez/ds4#759: one illegal access, and 22 hours of errors. The next process starts with the kernel off, where
    it is certain which one it was."""
    own = replace(settings, cache_dir=tmp_path / "cache")
    script = tmp_path / "fault.py"
    script.write_text(FAULT)
    label = gpu_entries["log"].variant.label

    def run() -> str:
        environment = {**os.environ, "CUDA_LAUNCH_BLOCKING": "1" if blocking else "0"}
        command = [sys.executable, str(script), str(path("exp", "log")), str(own.cache_dir)]
        return subprocess.run(command, capture_output=True, text=True, check=False, env=environment).stdout

    first = run()
    assert "STATES {'exp': '', 'log': ''}" in first
    assert ("ERROR" in first and label in first and "700" in first) or "illegal memory access" in first
    records = Quarantine(own.cache_dir).list()
    if blocking:
        assert "ForgeError" in first
        assert [(r.kernel, r.error, r.certain) for r in records] == [(label, 700, True)]
        second = run()
        assert "quarantined: error 700" in second
        assert "FINE True" in second
    else:
        assert "any of which may have caused this" in first or "An earlier kernel may have caused it" in first
        assert all(not record.certain for record in records)


def test_autocast_and_functional_forms_on_cuda(make_on_gpu: Make) -> None:
    package, x = make_on_gpu("exp"), torch.rand(16, 8, device="cuda")
    with package.dispatch():
        torch.testing.assert_close(x.exp(), plain(x) + MARK)
        with torch.autocast("cuda", dtype=torch.float16):
            assert torch.exp(x).dtype is torch.float32
            assert F.linear(x, x[:8]).dtype is torch.float16
    assert row(package).misses == {"autocast": 1}
