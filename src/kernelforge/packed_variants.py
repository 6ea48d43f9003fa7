"""What a package tells of its variants' calls: enough to judge and time a kernel again where there was no capture.

Owns `record_of`. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from kernelforge.benchmark.statistics import median
from kernelforge.cards.types import DimValues, SizePoint, Variant, VariantRecord
from kernelforge.package.types import MODES, Entry, JsonObject
from kernelforge.verify.sizes import footprint_bytes

TYPICAL_BYTES = 1 << 20
"""Of inputs and outputs at the sizes that stand for a variant whose sizes were never timed."""


def record_of(entry: Entry) -> VariantRecord | None:
    """What is known of a variant's calls from its package alone: the sizes that were timed, and their weights.

    Varying floats are not recorded there: each point has the middle of their ranges; cases draw others. None if not a
    single admitted size is known or found.
    """
    variant = entry.variant
    scalars = {s.name: (s.low + s.high) / 2 for s in variant.scalars}
    points: dict[tuple[tuple[str, int], ...], SizePoint] = {}
    for block in (*(entry.measured(mode) for mode in MODES), entry.measurement):
        for dims, calls, eager_us in _timed_sizes(block, variant):
            points.setdefault(
                tuple(sorted(dims.items())), SizePoint(dims=dims, scalars=scalars, calls=calls, eager_us=eager_us)
            )
    if not points:
        typical = _typical_dims(variant)
        if typical is None:
            return None
        points[()] = SizePoint(dims=typical, scalars=scalars, calls=1, eager_us=1.0)
    return VariantRecord(variant=variant, points=tuple(points.values()), share=entry.share)


def _timed_sizes(block: JsonObject, variant: Variant) -> Iterator[tuple[DimValues, int, float]]:
    """Sizes that a measurement has samples of and the guard admits: dims, calls, eager's microseconds per call."""
    points = block.get("points")
    for point in points if isinstance(points, Sequence) and not isinstance(points, str) else ():
        if not isinstance(point, Mapping):
            continue
        raw, calls, times = point.get("dims"), point.get("calls"), point.get("eager_us")
        if not isinstance(raw, Mapping) or set(raw) != {d.name for d in variant.dims}:
            continue
        dims = {name: value for name, value in raw.items() if isinstance(value, int) and not isinstance(value, bool)}
        if len(dims) != len(raw) or not variant.admits_dims(dims):
            continue
        samples = [t for t in times if isinstance(t, int | float)] if isinstance(times, Sequence) else []
        weight = calls if isinstance(calls, int) and calls > 0 else 1
        yield dims, weight, median(samples) if samples else 1.0


def _typical_dims(variant: Variant) -> DimValues | None:
    """Admitted sizes of `TYPICAL_BYTES`, or the largest below; None if none of those that are tried is admitted."""
    best = None
    for step in range(32):
        dims = {
            d.name: min(max(d.low, (1 << step)) // d.multiple_of, d.high // d.multiple_of) * d.multiple_of
            for d in variant.dims
        }
        dims = {d.name: dims[d.name] if dims[d.name] >= d.low else d.low + -d.low % d.multiple_of for d in variant.dims}
        if not variant.admits_dims(dims):
            continue
        if best is None or footprint_bytes(variant, dims) <= TYPICAL_BYTES:
            best = dims
    return best
