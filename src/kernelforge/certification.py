"""Times each entry of a package against eager through the real dispatch path, in this process.

Only binaries that the judge accepted come here. Both sides are called from Python exactly as a model calls them: the
operator's function, once with the package dispatched and once without, alternating in ABBA order.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kernelforge.benchmark.protocol import representative_points
from kernelforge.benchmark.statistics import Pairs, paired_interval, variant_interval
from kernelforge.benchmark.types import Interval
from kernelforge.cards.bind import to_bound
from kernelforge.cards.examples import ExampleStore
from kernelforge.cards.types import SizePoint, Variant, VariantRecord
from kernelforge.digest import Json
from kernelforge.operators import get_operator
from kernelforge.settings import Settings

if TYPE_CHECKING:
    from torch import Tensor

BLOCK_S = 0.004
"""One sample is a block of calls at least this long: longer than the clock's and the scheduler's grain."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DispatchedPoint:
    """Paired samples at one size point, microseconds per call, i-th with i-th a pair. calls: what it stands for."""

    dims: Mapping[str, int]
    calls: int
    eager_us: tuple[float, ...]
    dispatched_us: tuple[float, ...]

    @property
    def speedup(self) -> Interval:
        return paired_interval(self.eager_us, self.dispatched_us)


@dataclass(frozen=True, slots=True, kw_only=True)
class DispatchTiming:
    """What calls through dispatch cost: of the whole variant, weighted by calls, and per size point."""

    interval: Interval
    points: tuple[DispatchedPoint, ...]

    def wins_from(self, variant: Variant, threshold: float) -> int | None:
        """From how many elements of the largest tensor on every timed point beats the threshold beyond the noise.

        None if not even the largest point does. With small calls the dispatch may cost more than the kernel wins.
        """
        best = None
        for point in sorted(self.points, key=lambda p: -variant.largest_elements(p.dims)):
            if point.speedup.low <= threshold:
                break
            best = variant.largest_elements(point.dims)
        return best

    def to_json(self) -> Json:
        return {
            "speedup": {"median": self.interval.median, "low": self.interval.low, "high": self.interval.high},
            "points": [
                {
                    "dims": dict(p.dims),
                    "calls": p.calls,
                    "eager_us": list(p.eager_us),
                    "dispatched_us": list(p.dispatched_us),
                }
                for p in self.points
            ],
        }


def time_through_dispatch(
    package: Path,
    records: Sequence[VariantRecord],
    examples: ExampleStore,
    settings: Settings,
    *,
    say: Callable[[str], None],
    budget_s: float = 1.5,
) -> Iterator[DispatchTiming]:
    """One timing for each record, whose variants are those of the package's entries. `budget_s` bounds each."""
    from kernelforge.dispatch.loading import load

    loaded = load(package, settings=settings)
    for record in records:
        say(f"timing {record.variant.label} through dispatch")
        points = []
        for point, calls, share in representative_points(record):
            # Every point gets a fair part of the time: a decision for its sizes may depend on it alone.
            seconds = budget_s * max(share, 0.25)
            eager, fast = _time_point(loaded, record, point, examples, seconds)
            points.append(DispatchedPoint(dims=point.dims, calls=calls, eager_us=eager, dispatched_us=fast))
        pairs = [Pairs(calls=p.calls, eager_us=p.eager_us, candidate_us=p.dispatched_us) for p in points]
        interval, _, _ = variant_interval(pairs)
        yield DispatchTiming(interval=interval, points=tuple(points))


def _time_point(
    loaded: Any, record: VariantRecord, point: SizePoint, examples: ExampleStore, budget_s: float
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    import torch

    operator = get_operator(record.variant.operator)
    tensors = _inputs(record, point, examples)
    bound = to_bound(record.variant, point.dims, point.scalars, tensors)
    synchronize = torch.cuda.synchronize if record.variant.device == "cuda" else _nothing

    def block(calls: int) -> float:
        """Microseconds per call of one block."""
        synchronize()
        started = time.perf_counter()
        for _ in range(calls):
            operator.call(bound)
        synchronize()
        return (time.perf_counter() - started) / calls * 1e6

    eager_us: list[float] = []
    fast_us: list[float] = []
    with torch.inference_mode():
        calls = _calls_per_block(block, loaded)
        deadline = time.perf_counter() + budget_s
        while len(eager_us) < 12 or (time.perf_counter() < deadline and len(eager_us) < 60):
            first_eager = len(eager_us) % 2 == 0
            if first_eager:
                eager_us.append(block(calls))
            with loaded.dispatch():
                block(1)  # the switch itself is not part of a call
                fast_us.append(block(calls))
            if not first_eager:
                eager_us.append(block(calls))
    return tuple(eager_us), tuple(fast_us)


def _calls_per_block(block: Callable[[int], float], loaded: Any) -> int:
    block(1)
    with loaded.dispatch():
        block(1)
        fastest_us = block(3)
    return max(1, min(2000, int(BLOCK_S * 1e6 / max(fastest_us, 0.5))))


def _inputs(record: VariantRecord, point: SizePoint, examples: ExampleStore) -> list[Tensor]:
    """The captured tensors of the point, or drawn ones where none are stored, on the variant's device."""
    import torch

    from kernelforge.verify.draw import draw_inputs

    variant = record.variant
    if point.example and examples.has(point.example):
        return [tensor.to(variant.device) for tensor in examples.get(point.example)]
    specs = [pattern.spec(point.dims, variant.device) for pattern in variant.tensors]
    drawn = draw_inputs(
        variant, specs, "normal", pools=[None] * len(specs), seed=secrets.randbits(63),
        device=torch.device(variant.device),
    )  # fmt: skip
    return list(drawn)


def _nothing() -> None:
    """The CPU has nothing to wait for."""
