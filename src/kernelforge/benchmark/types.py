"""Measurements. Owns `PointTiming`, `Measurement`, `Interval`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A median with its interval (95% unless said otherwise)."""

    median: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PointTiming:
    """Paired samples at one size point.

    Attributes:
        dims: the sizes. calls: their weight, calls in the capture.
        eager_us, candidate_us: raw samples, microseconds per call, i-th with i-th a pair.
        speedup: median of eager/candidate over the pairs with its bootstrap interval.
        floor_us: roofline floor, or 0.0 if unknown.
        regime: "cold" (inputs rotate through more than the last-level cache) or "warm".
    """

    dims: Mapping[str, int]
    calls: int
    eager_us: tuple[float, ...]
    candidate_us: tuple[float, ...]
    speedup: Interval
    floor_us: float
    regime: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """Raw paired samples plus environment; median, interval and speed-up are derived. Exists only beside `Accepted`.

    Attributes:
        points: one per timed size point, the most important first.
        speedup: of the whole variant: total eager time over total candidate time, weighted by calls.
        eager_us, candidate_us, floor_us: weighted means of the points' medians, microseconds per call.
        environment: device name, torch version, threads, clocks ... as text.
    """

    points: tuple[PointTiming, ...]
    speedup: Interval
    eager_us: float
    candidate_us: float
    floor_us: float
    environment: Mapping[str, str]
