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

from kernelforge.benchmark.statistics import Pairs, variant_interval
from kernelforge.benchmark.types import Interval
from kernelforge.cards.bind import to_bound
from kernelforge.cards.types import SizePoint, VariantRecord
from kernelforge.digest import Json
from kernelforge.operators import get_operator
from kernelforge.package.types import Entry
from kernelforge.settings import Settings

if TYPE_CHECKING:
    from torch import Tensor

    from kernelforge.store.project import Project

MAX_POINTS = 4
BLOCK_S = 0.004
"""One sample is a block of calls at least this long: longer than the clock's and the scheduler's grain."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DispatchTiming:
    """Paired samples through dispatch: microseconds per call, per size point.

    Attributes:
        points: (dims, calls, eager samples, dispatched samples); i-th with i-th a pair.
    """

    interval: Interval
    points: tuple[tuple[Mapping[str, int], int, tuple[float, ...], tuple[float, ...]], ...]

    def to_json(self) -> Json:
        return {
            "speedup": {"median": self.interval.median, "low": self.interval.low, "high": self.interval.high},
            "points": [
                {"dims": dict(dims), "calls": calls, "eager_us": list(eager), "dispatched_us": list(fast)}
                for dims, calls, eager, fast in self.points
            ],
        }


def time_through_dispatch(
    package: Path,
    entries: Sequence[Entry],
    project: Project,
    settings: Settings,
    say: Callable[[str], None],
    *,
    budget_s: float = 1.5,
) -> Iterator[DispatchTiming]:
    """One timing per entry, in order. `budget_s` bounds the wall time of each."""
    from kernelforge.dispatch.loading import load

    loaded = load(package, settings=settings)
    for entry in entries:
        say(f"timing {entry.variant.label} through dispatch")
        record = project.record(entry.variant.id)
        points = sorted(record.points, key=lambda p: -p.calls * p.eager_us)[:MAX_POINTS]
        rows = []
        for point in points:
            eager, fast = _time_point(loaded, record, point, project, budget_s / len(points))
            rows.append((point.dims, point.calls, eager, fast))
        pairs = [Pairs(calls=c, eager_us=e, candidate_us=f) for _, c, e, f in rows]
        interval, _, _ = variant_interval(pairs)
        yield DispatchTiming(interval=interval, points=tuple(rows))


def _time_point(
    loaded: Any, record: VariantRecord, point: SizePoint, project: Project, budget_s: float
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    import torch

    operator = get_operator(record.variant.operator)
    tensors = _inputs(record, point, project)
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


def _inputs(record: VariantRecord, point: SizePoint, project: Project) -> list[Tensor]:
    """The captured tensors of the point, or drawn ones where none are stored, on the variant's device."""
    import torch

    from kernelforge.verify.draw import draw_inputs

    variant = record.variant
    if point.example and project.examples.has(point.example):
        return [tensor.to(variant.device) for tensor in project.examples.get(point.example)]
    specs = [pattern.spec(point.dims, variant.device) for pattern in variant.tensors]
    drawn = draw_inputs(
        variant, specs, "normal", pools=[None] * len(specs), seed=secrets.randbits(63),
        device=torch.device(variant.device),
    )  # fmt: skip
    return list(drawn)


def _nothing() -> None:
    """The CPU has nothing to wait for."""
