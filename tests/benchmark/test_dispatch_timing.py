"""Timing through dispatch: which regime decides, and that calls in flow are what they are said to be."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from kernelforge import certification
from kernelforge.capture.types import TensorRef
from kernelforge.cards.examples import ExampleStore
from kernelforge.cards.types import Extent, SizePoint, TensorPattern, Variant, VariantRecord
from kernelforge.certification import FLOW_BYTES, DispatchedPoint, DispatchTiming, _flow_block
from kernelforge.timing_inputs import FreshInputs


def point(repeated: float, in_flow: float | None, *, rows: int = 1, calls: int = 1) -> DispatchedPoint:
    """A point with these speed-ups."""
    eager = tuple(100.0 + 0.1 * i for i in range(20))
    flow = eager if in_flow is not None else ()
    return DispatchedPoint(
        dims={"n0": rows}, calls=calls, eager_us=eager, dispatched_us=tuple(e / repeated for e in eager),
        flow_eager_us=flow, flow_dispatched_us=tuple(e / (in_flow or 1.0) for e in flow),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("repeated", "in_flow", "deciding"),
    [
        (1.5, None, 1.5),
        (1.5, 1.2, 1.2),  # in flow decides
        (1.76, 0.61, 0.61),  # streaming stores: fast alone, slow in a model
        (0.8, 1.3, 0.8),  # what loses when repeated does not win
        (1.0, 1.3, 1.3),
    ],
)
def test_the_regime_that_decides(repeated: float, in_flow: float | None, deciding: float) -> None:
    timing = DispatchTiming(points=(point(repeated, in_flow),))
    assert math.isclose(timing.interval.median, deciding, rel_tol=1e-6)
    assert math.isclose(timing.points[0].speedup.median, deciding, rel_tol=1e-6)


def test_small_points_count_as_they_are_beside_large_ones_in_flow() -> None:
    timing = DispatchTiming(points=(point(1.5, None, rows=1), point(1.5, 0.9, rows=2)))
    assert 1.1 < timing.interval.median < 1.15  # 200 us over 100/1.5 + 100/0.9
    assert len(timing.to_json()["points"][1]["flow_eager_us"]) == 20  # type: ignore[index,call-overload,arg-type]


def noted(events: list[str], result: torch.Tensor) -> Callable[[], torch.Tensor]:
    def call() -> torch.Tensor:
        events.append("call")
        return result

    return call


def test_each_call_in_flow_finds_its_input_written_anew() -> None:
    x = torch.ones(FLOW_BYTES["cpu"] // 4)
    seen: list[float] = []

    def call() -> torch.Tensor:
        seen.append(float(x.max()))
        return x.mul_(2.0)

    block = _flow_block(call, [x])
    assert block is not None
    assert block(5) > 0
    assert all(1.0 < value < 2.0 for value in seen) and len(set(seen)) == 5


def test_small_and_overlapping_inputs_are_not_timed_in_flow() -> None:
    events: list[str] = []
    small, wide = torch.ones(8), torch.ones(1, 8).expand(FLOW_BYTES["cpu"], 8)
    assert _flow_block(noted(events, small), [small]) is None
    assert _flow_block(noted(events, wide), [wide]) is None
    assert events == []


def test_calls_captured_under_autocast_are_timed_under_it(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: set[object] = set()

    def call(bound: object) -> torch.Tensor:
        seen.add(torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else None)
        return torch.ones(1)

    pattern = TensorPattern(shape=(Extent(8),), stride=(Extent(1),), dtype="float32")
    variant = Variant(
        operator="relu", arguments=(("input", TensorRef(0)), ("inplace", False)), tensors=(pattern,),
        outputs=(pattern,), autocast="bfloat16",
    )  # fmt: skip
    time_calls(monkeypatch, variant, call)
    assert seen == {torch.bfloat16}


def time_calls(monkeypatch: pytest.MonkeyPatch, variant: Variant, call: Callable[..., torch.Tensor]) -> DispatchedPoint:
    point = SizePoint(dims={}, scalars={}, calls=1, eager_us=1.0)
    record = VariantRecord(variant=variant, points=(point,), share=1.0)
    monkeypatch.setattr(certification, "get_operator", lambda name: SimpleNamespace(call=call))
    package = SimpleNamespace(dispatch=nullcontext)
    return certification._time_point(package, record, point, ExampleStore(Path("nowhere")), calls=1, budget_s=0.01)


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16", "int64", "bool"])
@pytest.mark.parametrize("elements", [8 * 64, FLOW_BYTES["cpu"]])
def test_no_call_meets_a_part_of_the_inputs_of_the_last_ones(
    monkeypatch: pytest.MonkeyPatch, dtype: str, elements: int
) -> None:
    """A kernel that keeps its last results, whole or by blocks, would otherwise be timed at its memory's speed."""
    seen: list[torch.Tensor] = []

    def call(bound: Mapping[str, torch.Tensor]) -> torch.Tensor:
        if len(seen) < 100:
            seen.append(bound["input"].clone())
        return bound["input"]

    pattern = TensorPattern(shape=(Extent(elements),), stride=(Extent(1),), dtype=dtype)
    variant = Variant(
        operator="relu", arguments=(("input", TensorRef(0)), ("inplace", False)), tensors=(pattern,), outputs=(pattern,)
    )
    time_calls(monkeypatch, variant, call)
    assert all(bool(x.isfinite().all()) for x in seen)
    same = [
        bool((a.reshape(-1, 64) == b.reshape(-1, 64)).all(dim=1).any()) for a, b in itertools.pairwise(seen)
    ]  # fmt: skip
    # By chance, where a type knows few values.
    assert sum(same) <= len(same) // 8, f"{sum(same)} of {len(same)}"


@pytest.mark.parametrize(
    "tensor",
    [
        torch.zeros(0, 4), torch.ones(()), torch.ones(5, 1).expand(5, 4), torch.ones(8, 104)[:, :100],
        torch.full((4, 4), float("-inf")), torch.arange(6), torch.ones(3, dtype=torch.bool), torch.ones(4, 3).t(),
    ],
    ids=["empty", "no dimension", "expanded", "gaps", "inf", "integers", "bools", "transposed"],
)  # fmt: skip
def test_fresh_inputs_are_of_the_same_kind(tensor: torch.Tensor) -> None:
    before = tensor.clone()
    fresh = FreshInputs([tensor])
    fresh.renew(2)
    for (made,) in fresh.sets[:2]:
        assert (made.shape, made.stride(), made.dtype) == (tensor.shape, tensor.stride(), tensor.dtype)
        assert torch.equal(made.isinf(), tensor.isinf()) and not bool(made.isnan().any())
        if not tensor.is_floating_point():
            assert torch.equal(made.sort().values, tensor.sort().values)
        elif tensor.numel() and bool(tensor.isfinite().all()):
            assert bool((made > tensor).all()) and made.data_ptr() != tensor.data_ptr()
    assert torch.equal(tensor, before)


def test_a_point_is_timed_again_when_others_use_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    shares = iter([0.9, 0.1, 0.9, 0.8, 0.0])
    monkeypatch.setattr(certification, "ForeignLoad", lambda pids: SimpleNamespace(share=lambda: next(shares)))
    monkeypatch.setattr(certification, "wait_until_quiet", lambda *_, **__: None)
    timed = iter([point(2.0, None), point(3.0, None), point(4.0, None), point(5.0, None), point(6.0, None)])

    def again() -> DispatchTiming:
        return DispatchTiming(points=(certification._time_quietly(lambda: next(timed)),))

    quiet, busy, first = again(), again(), again()
    assert (quiet.foreign_cpu_share, busy.foreign_cpu_share, first.foreign_cpu_share) == (0.1, 0.8, 0.0)
    assert (quiet.busy, busy.busy, first.busy) == (False, True, False)
    assert [round(t.interval.median) for t in (quiet, busy, first)] == [3, 5, 6]
