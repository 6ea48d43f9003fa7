"""Timing through dispatch: which regime decides, and that calls in flow are what they are said to be."""

from __future__ import annotations

import math
from collections.abc import Callable
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
        seen.append(float(x[0]))
        return x.mul_(2.0)

    block = _flow_block(call, [x])
    assert block is not None
    assert block(5) > 0
    assert seen == [1.0] * 5


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
    record = VariantRecord(
        variant=variant, points=(SizePoint(dims={}, scalars={}, calls=1, eager_us=1.0),), share=1.0
    )  # fmt: skip
    monkeypatch.setattr(certification, "get_operator", lambda name: SimpleNamespace(call=call))
    package = SimpleNamespace(dispatch=nullcontext)
    certification._time_point(
        package, record, record.points[0], ExampleStore(Path("nowhere")), calls=1, budget_s=0.01
    )  # fmt: skip
    assert seen == {torch.bfloat16}
