"""What of a variant is timed: which of its observed sizes, and over how many sets of buffers. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kernelforge.benchmark.machine import MachineFacts
from kernelforge.cards.types import DimValues, ScalarValues, SizePoint, Variant, VariantRecord
from kernelforge.runner.protocol import BufferSet
from kernelforge.verify.prepare import PreparedCase
from kernelforge.verify.sizes import footprint_bytes

MAX_POINTS = 4
MAX_SETS = 8
SETS_CAP_BYTES = {"cpu": 1 << 28, "cuda": 1 << 31}
"""At most so much memory for the buffer sets of a point; at least two sets there always are."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TimedPoint:
    """One size point with its rotating buffer sets.

    Attributes:
        calls: captured calls that the point stands for. share: of the variant's eager time, for the time budget.
        sets: at least one; checked: the sets whose outputs are known, by position in `sets`.
    """

    dims: DimValues
    scalars: ScalarValues
    calls: int
    share: float
    sets: tuple[BufferSet, ...]
    checked: Mapping[int, PreparedCase]


def representative_points(record: VariantRecord, *, most: int = MAX_POINTS) -> tuple[tuple[SizePoint, int, float], ...]:
    """Points to time, each with the calls it stands for and its share of the variant's eager time, in [0, 1].

    All points if they are few; else the points in order of size are cut into groups of equal eager time, and each
    group's costliest point stands for it.
    """
    total = sum(p.calls * p.eager_us for p in record.points) or 1.0
    ordered = sorted(record.points, key=lambda p: footprint_bytes(record.variant, p.dims))
    groups: list[list[SizePoint]] = [[p] for p in ordered]
    if len(ordered) > most:
        groups, done = [[] for _ in range(most)], 0.0
        for point in ordered:
            groups[min(int(done / total * most), most - 1)].append(point)
            done += point.calls * point.eager_us
    chosen = []
    for group in filter(None, groups):
        heaviest = max(group, key=lambda p: p.calls * p.eager_us)
        weight = sum(p.calls * p.eager_us for p in group) / total
        chosen.append((heaviest, sum(p.calls for p in group), weight))
    return tuple(sorted(chosen, key=lambda c: -c[2]))


def rotating_sets(variant: Variant, dims: DimValues, facts: MachineFacts, *, cap_bytes: int) -> int:
    """How many buffer sets rotate: enough to exceed the last-level cache by half, within the caps."""
    footprint = max(footprint_bytes(variant, dims), 1)
    wanted = -(-facts.cache_bytes * 3 // (2 * footprint))
    return max(2, min(wanted, MAX_SETS, cap_bytes // footprint))
