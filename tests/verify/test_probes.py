"""Probes: cases that differ in a few secret elements, and what the gate makes of kernels that keep results."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import pytest
import torch
from torch import Tensor

from kernelforge.capture.types import TensorRef
from kernelforge.cards.examples import ExampleStore
from kernelforge.cards.types import Extent, SizePoint, TensorPattern, Variant, VariantRecord
from kernelforge.runner.protocol import BufferSet, LoadReply, RunReply
from kernelforge.verify.cases import CaseMaker, Level
from kernelforge.verify.compare import Mismatch, compare
from kernelforge.verify.gate import replay, verify
from kernelforge.verify.layout import from_bytes, to_bytes
from kernelforge.verify.prepare import PreparedCase, named_values, prepare
from kernelforge.verify.probes import with_probes
from kernelforge.verify.reference import evaluate
from kernelforge.verify.types import Accepted, Rejected, RejectReason

CPU = torch.device("cpu")


def fixed(*shape: int) -> TensorPattern:
    stride = torch.empty(shape, device="meta").stride()
    return TensorPattern(shape=tuple(map(Extent, shape)), stride=tuple(map(Extent, stride)), dtype="float32")


def add_row() -> Variant:
    arguments = (("input", TensorRef(0)), ("other", TensorRef(1)), ("alpha", 1.0), ("inplace", False))
    return Variant(
        operator="add", arguments=arguments, tensors=(fixed(40, 30), fixed(30)), outputs=(fixed(40, 30),)
    )  # fmt: skip


def eager(variant: Variant, work: BufferSet) -> list[Tensor]:
    dims, scalars = named_values(variant, work)
    data = [b.data for b in work.buffers if b.data is not None]
    specs = [p.spec(dims, "cpu") for p in variant.tensors]
    return list(evaluate(variant, dims, scalars, [from_bytes(d, s, CPU) for d, s in zip(data, specs, strict=True)]))


class InProcess:
    def outputs(self, variant: Variant, work: BufferSet) -> list[memoryview]:
        return [to_bytes(t) for t in eager(variant, work)]


def prepared_cases(variant: Variant, folder: Path) -> tuple[PreparedCase, ...]:
    point = SizePoint(dims={}, scalars={}, calls=1, eager_us=1.0)
    record = VariantRecord(variant=variant, points=(point,), share=1.0)
    maker = CaseMaker(record, ExampleStore(folder), CPU)
    made = [prepare(variant, maker.draw(plan), InProcess()) for plan in maker.plans(Level.GATE)]
    return with_probes(maker, [c for c in made if c is not None], InProcess(), random.Random(5))


def test_each_input_has_probes_that_change_few_inner_elements_and_the_output(tmp_path: Path) -> None:
    (base,) = [c for c in prepared_cases(add_row(), tmp_path) if c.probes]
    changed = []
    for probe in base.probes:
        different = [a != b for a, b in zip(base.case.inputs, probe.case.inputs, strict=True)]
        (index,) = [i for i, d in enumerate(different) if bool(d.any())]
        flat = different[index].reshape(-1)
        margin = len(flat) // 8
        assert 1 <= int(flat.sum()) <= 16 and not flat[:margin].any() and not flat[-margin:].any()
        assert isinstance(compare(probe.expected[0], base.expected[0].eager), Mismatch)
        assert "a few elements of" in probe.case.description
        changed.append(index)
    assert changed == [0, 0, 1, 1]


class Kernel(Protocol):
    def __call__(self, inputs: list[Tensor], address: int) -> Tensor | None: ...


class Session:
    """A runner in this process: addresses are slots, and outputs are poisoned."""

    pid = 0
    in_torch = False

    def __init__(self, kernel: Kernel) -> None:
        self._kernel, self._slots = kernel, dict[int, BufferSet]()

    def load(self, slot: int, work: BufferSet) -> LoadReply:
        self._slots[slot] = work
        return LoadReply(error="", message="", workspace_bytes=0)

    def unload(self, slot: int) -> None:
        del self._slots[slot]

    def run_slot(self, slot: int) -> RunReply:
        work = self._slots[slot]
        inputs = [torch.frombuffer(bytearray(b.data), dtype=torch.float32) for b in work.buffers if b.data is not None]
        result = self._kernel(inputs, slot)
        poison = bytearray(b"\x7f" * work.buffers[-1].size_bytes)
        return RunReply(outputs=(poison if result is None else bytearray(to_bytes(result.contiguous())),))


def add(inputs: list[Tensor]) -> Tensor:
    return inputs[0].reshape(40, 30) + inputs[1]


class ByAddress:
    """Keeps one result for each address, and looks at some elements too; begins after so many calls."""

    def __init__(self, *, step: int, after: int = 0) -> None:
        self.step, self.after, self.calls = step, after, 0
        self.kept: dict[tuple[int, float], Tensor] = {}

    def __call__(self, inputs: list[Tensor], address: int) -> Tensor:
        self.calls += 1
        key = (address, float(inputs[0][:: self.step].double().nan_to_num().sum()))
        if self.calls <= self.after or key not in self.kept:
            self.kept[key] = add(inputs)
        return self.kept[key]


class FirstWeight:
    """Keeps the weight of the first call."""

    weight: Tensor | None = None

    def __call__(self, inputs: list[Tensor], address: int) -> Tensor:
        self.weight = inputs[1] if self.weight is None else self.weight
        return add([inputs[0], self.weight])


class OldAddresses:
    """A graph that writes where it was captured."""

    def __call__(self, inputs: list[Tensor], address: int) -> Tensor | None:
        return add(inputs) if address == 0 else None


@pytest.mark.parametrize("make", [lambda: ByAddress(step=2000), lambda: ByAddress(step=67), FirstWeight, OldAddresses])
def test_what_is_kept_between_calls_is_called_stale(tmp_path: Path, make: Callable[[], Kernel]) -> None:
    verdict = verify(Session(make()), add_row(), prepared_cases(add_row(), tmp_path))  # type: ignore[arg-type]
    assert isinstance(verdict, Rejected) and verdict.reason is RejectReason.STALE_OUTPUT, verdict


def test_a_kernel_without_memory_passes(tmp_path: Path) -> None:
    cases = prepared_cases(add_row(), tmp_path)
    session = Session(lambda inputs, address: add(inputs))
    assert isinstance(verify(session, add_row(), cases), Accepted)  # type: ignore[arg-type]
    assert replay(session, add_row(), cases) is None  # type: ignore[arg-type]


def test_what_begins_late_is_found_by_a_replay(tmp_path: Path) -> None:
    cases = prepared_cases(add_row(), tmp_path)
    session = Session(ByAddress(step=2000, after=60))
    assert isinstance(verify(session, add_row(), cases), Accepted)  # type: ignore[arg-type]
    for _ in range(60):
        session.load(0, cases[0].work)
        session.run_slot(0)
    found = replay(session, add_row(), cases)  # type: ignore[arg-type]
    assert found is not None and found.reason is RejectReason.STALE_OUTPUT
