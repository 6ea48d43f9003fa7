"""The eager worker equals torch in this process, mirrors the runner's timing, and can be replaced."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator, Sequence
from types import SimpleNamespace

import pytest
import torch

from kernelforge.capture.types import Arguments, DimRef, ScalarRef, TensorRef
from kernelforge.cards.types import Dim, Extent, Scalar, TensorPattern, Variant
from kernelforge.errors import HarnessError
from kernelforge.runner import eager_main
from kernelforge.runner.eager import EagerWorker
from kernelforge.runner.protocol import Buffer


@pytest.fixture(scope="module")
def worker() -> Iterator[EagerWorker]:
    with EagerWorker("cpu", 2) as made:
        yield made


def pattern(tensor: torch.Tensor, *, first_dim: str = "") -> TensorPattern:
    shape = [Extent(n) for n in tensor.shape]
    if first_dim:
        shape[0] = Extent(1, (first_dim,))
    dtype = str(tensor.dtype).removeprefix("torch.")
    return TensorPattern(shape=tuple(shape), stride=tuple(Extent(s) for s in tensor.stride()), dtype=dtype)


def raw(tensor: torch.Tensor) -> bytes:
    """From the first element to the last that the strides reach."""
    if tensor.numel() == 0:
        return b""
    span = 1 + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
    return bytes(tensor.as_strided((span,), (1,)).view(torch.uint8).numpy().tobytes())


def variant_of(
    operator: str, arguments: Arguments, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor],
    mutates: tuple[int, ...] = (),
) -> Variant:  # fmt: skip
    return Variant(
        operator=operator, arguments=arguments, tensors=tuple(map(pattern, inputs)),
        outputs=tuple(map(pattern, outputs)), mutates=mutates,
    )  # fmt: skip


def buffers_of(
    inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor], mutates: tuple[int, ...] = (), alignment: int = 64
) -> list[Buffer]:
    made = []
    for index, tensor in enumerate(inputs):
        data = raw(tensor)
        kind = "inout" if index in mutates else "input"
        made.append(Buffer(kind=kind, data=data, size_bytes=len(data), alignment=alignment))  # type: ignore[arg-type]
    return made + [Buffer(kind="output", data=None, size_bytes=len(raw(t))) for t in outputs]


@pytest.mark.parametrize("alignment", [8, 16, 64])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_equals_torch_bit_for_bit(worker: EagerWorker, dtype: torch.dtype, alignment: int) -> None:
    x = torch.randn(5, 33).to(dtype)
    want = torch.softmax(x, 1)
    arguments: Arguments = (("input", TensorRef(0)), ("dim", 1), ("dtype", None))
    variant = variant_of("softmax", arguments, [x], [want])
    reply = worker.run(variant.to_json(), {}, {}, buffers_of([x], [want], alignment=alignment))
    assert bytes(reply.outputs[0]) == raw(want)
    assert 0 < reply.seconds <= reply.wall_s


def test_strides_with_gaps_survive(worker: EagerWorker) -> None:
    x = torch.randn(6, 40)[:, ::3].t()
    want = torch.relu(x)
    variant = variant_of("relu", (("input", TensorRef(0)), ("inplace", False)), [x], [want])
    reply = worker.run(variant.to_json(), {}, {}, buffers_of([x], [want]))
    assert bytes(reply.outputs[0]) == raw(want)


def test_in_place_call_sends_its_target_back_and_starts_afresh(worker: EagerWorker) -> None:
    x = torch.randn(4, 8)
    variant = variant_of("relu", (("input", TensorRef(0)), ("inplace", True)), [x], [], mutates=(0,))
    worker.load(5, variant.to_json(), {}, {}, buffers_of([x], [], mutates=(0,)))
    for _ in range(2):
        assert bytes(worker.run_slot(5).outputs[0]) == raw(x.relu())
    worker.unload(5)


def test_dims_and_scalars_are_bound_by_name(worker: EagerWorker) -> None:
    x = torch.randn(7, 3)
    want = torch.nn.functional.leaky_relu(x, 0.25)
    arguments: Arguments = (("input", TensorRef(0)), ("negative_slope", ScalarRef("s0")), ("inplace", False))
    variant = Variant(
        operator="leaky_relu", arguments=arguments, tensors=(pattern(x, first_dim="n0"),),
        outputs=(pattern(want, first_dim="n0"),), dims=(Dim(name="n0", low=1, high=99),),
        scalars=(Scalar(name="s0", low=0.0, high=1.0),),
    )  # fmt: skip
    reply = worker.run(variant.to_json(), {"n0": 7}, {"s0": 0.25}, buffers_of([x], [want]))
    assert bytes(reply.outputs[0]) == raw(want)


def test_empty_and_zero_dimensional_tensors(worker: EagerWorker) -> None:
    for x in (torch.randn(0, 4), torch.tensor(-2.5)):
        want = torch.relu(x)
        variant = variant_of("relu", (("input", TensorRef(0)), ("inplace", False)), [x], [want])
        reply = worker.run(variant.to_json(), {}, {}, buffers_of([x], [want]))
        assert bytes(reply.outputs[0]) == raw(want)


def test_eager_that_contradicts_the_variant_is_a_harness_error(worker: EagerWorker) -> None:
    x = torch.randn(4, 8)
    variant = variant_of("relu", (("input", TensorRef(0)), ("inplace", False)), [x], [x.t()])
    with pytest.raises(HarnessError, match="output 0"):
        worker.run(variant.to_json(), {}, {}, buffers_of([x], [x]))
    broken = variant_of("relu", (("input", DimRef("n9")), ("inplace", False)), [x], [x])
    with pytest.raises(HarnessError, match="n9"):
        worker.run(broken.to_json(), {}, {}, buffers_of([x], [x]))


def test_timing_agrees_with_the_clock_of_this_process(worker: EagerWorker) -> None:
    x = torch.randn(256, 4096)
    want = torch.softmax(x, 1)
    variant = variant_of("softmax", (("input", TensorRef(0)), ("dim", 1), ("dtype", None)), [x], [want])
    sets = [buffers_of([x], [want])] * 2
    reply = worker.time(variant.to_json(), {}, {}, sets, iterations=9, flush_bytes=1 << 20)
    assert len(reply.samples_ns) == 9 and reply.total_ns == sum(reply.samples_ns) <= reply.wall_s * 1e9
    assert min(reply.samples_ns) > 20_000  # four megabytes cannot be read and written faster
    batch = worker.time(variant.to_json(), {}, {}, sets, iterations=9, batch=True)
    assert batch.samples_ns == () and 9 * 20_000 < batch.total_ns <= batch.wall_s * 1e9


def test_large_outputs_do_not_pay_page_faults_while_timed(worker: EagerWorker) -> None:
    x = torch.randn(4 << 20)
    variant = variant_of("relu", (("input", TensorRef(0)), ("inplace", False)), [x], [x])
    worker.load(0, variant.to_json(), {}, {}, buffers_of([x], [x]))
    worker.time_slots(0, 1, iterations=1)
    before = page_faults(worker.pid)
    worker.time_slots(0, 1, iterations=10)
    assert page_faults(worker.pid) - before < 4 * (4 << 20) // 4096
    worker.unload(0)


def page_faults(pid: int) -> int:
    with open(f"/proc/{pid}/stat") as file:  # noqa: PTH123
        return int(file.read().rpartition(")")[2].split()[7])


def test_dead_worker_is_reported_then_replaced(worker: EagerWorker) -> None:
    x = torch.randn(4, 8)
    variant = variant_of("relu", (("input", TensorRef(0)), ("inplace", False)), [x], [x])
    worker.load(0, variant.to_json(), {}, {}, buffers_of([x], [x]))
    first = worker.pid
    os.kill(first, signal.SIGKILL)
    time.sleep(0.1)
    with pytest.raises(HarnessError, match="died"):
        worker.run_slot(0)
    with pytest.raises(HarnessError):
        worker.run_slot(0)
    reply = worker.run(variant.to_json(), {}, {}, buffers_of([x], [x]))
    assert bytes(reply.outputs[0]) == raw(x.relu())
    assert worker.pid != first


class FakeGpu:
    """A stream and a host, microseconds: work begins when it is queued and all before it is done."""

    def __init__(self, *, host_us: float) -> None:
        self.host_us, self.now, self.free = host_us, 0.0, 0.0

    def work(self, us: float, *, host_us: float = 1.0) -> None:
        self.now += host_us
        self.free = max(self.free, self.now) + us

    def zero_(self) -> None:
        self.work(61.0)

    def call(self) -> None:
        self.work(5.0, host_us=self.host_us)

    def synchronise(self) -> None:
        self.now = max(self.now, self.free)

    def restore(self) -> None:
        """Nothing is changed in place."""

    def element_size(self) -> int:
        return 1

    def __getitem__(self, part: slice) -> FakeGpu:
        return self


class FakeEvent:
    def __init__(self, gpu: FakeGpu) -> None:
        self.gpu, self.at = gpu, 0.0

    def record(self) -> None:
        self.at = max(self.gpu.free, self.gpu.now)

    def query(self) -> bool:
        return self.at <= self.gpu.now

    def elapsed_time(self, end: FakeEvent) -> float:
        return (end.at - self.at) / 1e3


@pytest.mark.parametrize("host_us", [2.0, 45.0, 150.0, 400.0])
def test_a_slow_host_is_not_read_as_a_slow_device(monkeypatch: pytest.MonkeyPatch, host_us: float) -> None:
    gpu = FakeGpu(host_us=host_us)
    monkeypatch.setattr(eager_main, "_event", lambda: FakeEvent(gpu))
    server = SimpleNamespace(_scratch_of=lambda _bytes: gpu, _synchronise=gpu.synchronise)
    samples = eager_main.EagerServer._time_cuda(server, [gpu, gpu], 70, 0)  # type: ignore[arg-type, list-item]
    assert len(samples) == 70
    assert samples == [5000] * 70


def test_a_call_that_waits_for_the_device_is_timed_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = FakeGpu(host_us=10.0)
    monkeypatch.setattr(eager_main, "_event", lambda: FakeEvent(gpu))
    server = SimpleNamespace(_scratch_of=lambda _bytes: gpu, _synchronise=gpu.synchronise)

    def waits() -> None:
        gpu.call()
        gpu.synchronise()

    slot = SimpleNamespace(call=waits, restore=gpu.restore)
    assert eager_main.EagerServer._time_cuda(server, [slot], 8, 0) == [15000] * 8  # type: ignore[arg-type, list-item]
