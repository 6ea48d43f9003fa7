"""Compiled code with kernels on a GPU: under CUDA graphs too, with inputs that change between replays."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.dispatch.conftest import COMPILED, handwritten

from kernelforge.capture.facts import capability_of
from kernelforge.capture.types import ScalarRef, TensorRef
from kernelforge.cards.types import Dim, Extent, Scalar, TensorPattern, Variant
from kernelforge.dispatch.compiled import compiled_pair
from kernelforge.dispatch.loading import LoadedPackage, load
from kernelforge.package.types import Header
from kernelforge.package.writer import write_package
from kernelforge.settings import Settings

pytestmark = [
    pytest.mark.gpu, pytest.mark.nvcc,
    pytest.mark.filterwarnings("ignore:.torch.jit.*. is", "ignore::DeprecationWarning", "ignore::UserWarning"),
]  # fmt: skip

MARK = 1 / 1024  # what each test kernel adds to its result
ROWS = TensorPattern(
    shape=(Extent(1, ("n0",)), Extent(64)), stride=(Extent(64), Extent(1)), dtype="float32", alignment=16
)
LAUNCH = """
extern "C" int launch(const float* input, int64_t n0, {scalar}float* out, void* workspace, cudaStream_t stream) {{
  body<<<(unsigned)n0, 64, 0, stream>>>(input, {given}out{memory});
  return (int)cudaGetLastError();
}}
"""
SOFTMAX = """
__global__ void body(const float* input, float* out) {
  const float* x = input + 64 * (int64_t)blockIdx.x;
  float sum = 0;
  for (int i = 0; i < 64; ++i) sum += expf(x[i]);
  out[64 * (int64_t)blockIdx.x + threadIdx.x] = expf(x[threadIdx.x]) / sum + 1.0f / 1024;
}
""" + LAUNCH.format(scalar="", given="", memory="")
# With a workspace, which must come from the graph's own memory.
MUL = """
extern "C" size_t workspace_bytes(int64_t n0) { return 256 * n0; }
__global__ void body(const float* input, float factor, float* out, float* scratch) {
  const int64_t i = 64 * (int64_t)blockIdx.x + threadIdx.x;
  scratch[i] = input[i] * factor;
  out[i] = scratch[i] + 1.0f / 1024;
}
""" + LAUNCH.format(scalar="double s0, ", given="(float)s0, ", memory=", (float*)workspace")


@pytest.fixture(scope="module")
def package(cache: Settings, tmp_path_factory: pytest.TempPathFactory) -> LoadedPackage:
    """A softmax over rows of 64, and a product with a number, which has a workspace."""
    common: dict[str, Any] = {
        "tensors": (ROWS,), "outputs": (ROWS,), "dims": (Dim(name="n0", low=1, high=4096),), "device": "cuda",
        "capability": capability_of("cuda"),
    }  # fmt: skip
    row_wise = (("input", TensorRef(0)), ("dim", 1), ("dtype", None))
    by_a_number = (("input", TensorRef(0)), ("other", ScalarRef("s0")), ("inplace", False))
    softmax = Variant(operator="softmax", arguments=row_wise, **common)
    mul = Variant(
        operator="mul", arguments=by_a_number, scalars=(Scalar(name="s0", low=0.5, high=4.0),), **common
    )  # fmt: skip
    entries = [
        handwritten(variant, source, cache, backend="cuda", decisions=COMPILED)
        for variant, source in ((softmax, SOFTMAX), (mul, MUL))
    ]
    path: Path = tmp_path_factory.mktemp("packages") / "kernels.cast"
    header = Header(
        name="test", device="cuda", torch=torch.__version__, created_by="test",
        device_name=torch.cuda.get_device_name(),
    )  # fmt: skip
    write_package(path, entries, header=header)
    return load(path, settings=cache)


@pytest.fixture(autouse=True)
def fresh() -> None:
    torch._dynamo.reset()


def function(x: torch.Tensor) -> torch.Tensor:
    return torch.relu(torch.softmax(x - 1.0, 1) * 2.0) + 1.0


def want(x: torch.Tensor) -> torch.Tensor:
    return torch.relu((torch.softmax(x - 1.0, 1) + MARK) * 2.0 + MARK) + 1.0


def hits(package: LoadedPackage) -> int:
    return sum(row.hits for row in package.stats("compiled"))


@pytest.mark.parametrize("mode", ["default", "reduce-overhead", "max-autotune-no-cudagraphs"])
def test_inputs_that_change_between_calls(package: LoadedPackage, mode: str) -> None:
    compiled = package.compile(function, fullgraph=True, dynamic=False, mode=mode)
    before = hits(package)
    with torch.no_grad():
        for rows in (128, 32, 128):
            for seed in range(6):
                x = torch.randn(rows, 64, generator=torch.Generator("cuda").manual_seed(seed), device="cuda")
                torch.testing.assert_close(compiled(x), want(x))
    served = hits(package) - before
    assert served >= 4
    # A replayed graph runs without Python: only warm-up and capture are counted.
    assert served == 36 if mode != "reduce-overhead" else served < 36


def test_a_graph_is_captured_and_not_skipped(package: LoadedPackage) -> None:
    from torch._dynamo.utils import counters

    counters.clear()
    compiled = package.compile(function, fullgraph=True, mode="reduce-overhead")
    with torch.no_grad():
        for _ in range(4):
            compiled(torch.randn(128, 64, device="cuda"))
    assert counters["inductor"]["cudagraph_skips"] == 0


def test_an_input_at_another_alignment_and_a_replay(package: LoadedPackage) -> None:
    compiled = package.compile(lambda x: torch.softmax(x, 1), fullgraph=True, mode="reduce-overhead")
    with torch.no_grad():
        for _ in range(4):
            x = torch.randn(128 * 64 + 1, device="cuda")[1:].view(128, 64)
            torch.testing.assert_close(compiled(x), torch.softmax(x, 1), atol=2 * MARK, rtol=0.0)
            y = torch.randn(128, 64, device="cuda")
            torch.testing.assert_close(compiled(y), torch.softmax(y, 1) + MARK)


def test_a_stream_of_its_own(package: LoadedPackage) -> None:
    compiled = package.compile(function, fullgraph=True)
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    x = torch.randn(4096, 64, device="cuda")
    with torch.no_grad():
        compiled(x)
        torch.cuda.synchronize()
        with torch.cuda.stream(stream):
            torch.cuda._sleep(10_000_000)  # type: ignore[no-untyped-call]
            y = x + 1.0
            got = compiled(y)
        stream.synchronize()
    torch.testing.assert_close(got, want(y))


def test_gradients_are_eagers(package: LoadedPackage) -> None:
    x = torch.randn(128, 64, device="cuda")
    found = []
    for call in (function, package.compile(function, fullgraph=True, mode="reduce-overhead")):
        leaf = x.clone().requires_grad_()
        call(leaf).square().sum().backward()
        assert leaf.grad is not None
        found.append(leaf.grad.clone())
    torch.testing.assert_close(found[1], found[0])


def test_operators_of_a_gpu_pass_torchs_own_checks(package: LoadedPackage) -> None:
    from torch.library import opcheck

    from kernelforge.dispatch.compiled import kernels_of

    kernels = kernels_of(package)
    for entry, _ in kernels.tables.guarded:
        operator = kernels.namespace.operator(entry)
        for requires_grad in (False, True):
            x = torch.randn(128, 64, device="cuda", requires_grad=requires_grad)
            opcheck(operator.overload, (x, *(2.0 for _ in entry.variant.scalars)))


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_a_pair_on_a_gpu(package: LoadedPackage, mode: str) -> None:
    x = torch.randn(128, 64, device="cuda")
    for entry in package.package.entries:
        scalars = {s.name: 2.0 for s in entry.variant.scalars}
        pair = compiled_pair(package, entry.variant, {"n0": 128}, scalars, mode=mode)
        assert not isinstance(pair, str)
        with torch.no_grad():
            for _ in range(4):
                plain = pair.plain(x).clone()
                torch.testing.assert_close(pair.fast(x), plain + MARK)
        assert pair.hits > 0


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_a_second_gpu(package: LoadedPackage) -> None:
    compiled: Callable[..., Any] = package.compile(function, fullgraph=True)
    before = hits(package)
    with torch.no_grad():
        for index in (0, 1, 0, 1):
            x = torch.randn(128, 64, device=f"cuda:{index}")
            got = compiled(x)
            assert got.device == x.device
            torch.testing.assert_close(got, want(x))
    assert hits(package) - before == 8
