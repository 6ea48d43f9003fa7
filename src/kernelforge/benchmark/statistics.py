"""Statistics of paired timings. Pure: samples in, medians and intervals out; the bootstrap has a fixed seed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kernelforge.benchmark.types import Interval

RESAMPLES = 1000
SEED = 20240229


@dataclass(frozen=True, slots=True, kw_only=True)
class Pairs:
    """Paired samples of one size point, microseconds per call; calls: the point's weight."""

    calls: int
    eager_us: tuple[float, ...]
    candidate_us: tuple[float, ...]


def median(samples: Sequence[float]) -> float:
    """The median.

    Raises:
        ValueError: no samples.
    """
    if not samples:
        raise ValueError("no samples to take a median of")
    return float(np.median(np.asarray(samples)))


def paired_interval(
    eager_us: Sequence[float], candidate_us: Sequence[float], *, confidence: float = 0.95, resamples: int = RESAMPLES
) -> Interval:
    """Median of eager/candidate over the pairs, with its bootstrap interval.

    Args:
        eager_us, candidate_us: the i-th with the i-th is a pair; microseconds.

    Raises:
        ValueError: no pairs, or samples that are not paired or not positive.
    """
    ratios = _positive(eager_us, candidate_us)
    picks = np.random.default_rng(SEED).integers(0, len(ratios), size=(resamples, len(ratios)))
    return _interval(float(np.median(ratios)), np.median(ratios[picks], axis=1), confidence)


def variant_interval(
    points: Sequence[Pairs], *, confidence: float = 0.95, resamples: int = RESAMPLES
) -> tuple[Interval, float, float]:
    """Speed-up of a variant over its points: total eager time over total candidate time, weighted by calls.

    Each point contributes calls x median eager time, and that over its median paired ratio: the ratio is what was
    measured in pairs, so a slow minute of the machine cancels.

    Returns:
        The interval, and the weighted means of eager's and the candidate's medians, microseconds per call.
    """
    if not points:
        raise ValueError("no points to summarise")
    generator = np.random.default_rng(SEED)
    total_calls = sum(p.calls for p in points)
    eager_sum = candidate_sum = 0.0
    eager_draws, candidate_draws = np.zeros(resamples), np.zeros(resamples)
    for point in points:
        ratios = _positive(point.eager_us, point.candidate_us)
        weight = point.calls * median(point.eager_us)
        picks = generator.integers(0, len(ratios), size=(resamples, len(ratios)))
        eager_sum += weight
        candidate_sum += weight / float(np.median(ratios))
        eager_draws += weight
        candidate_draws += weight / np.median(ratios[picks], axis=1)
    interval = _interval(eager_sum / candidate_sum, eager_draws / candidate_draws, confidence)
    return interval, eager_sum / total_calls, candidate_sum / total_calls


def widened(interval: Interval, *, eager_us: float, candidate_us: float, either_us: float) -> Interval:
    """The interval if either side's time may be off by `either_us` in a way that no number of samples shows."""
    return Interval(
        low=interval.low * candidate_us / (candidate_us + either_us), median=interval.median,
        high=interval.high * (eager_us + either_us) / eager_us,
    )  # fmt: skip


def half_width(interval: Interval) -> float:
    """Half the interval's width, relative to its median."""
    return (interval.high - interval.low) / 2 / interval.median


def _positive(eager_us: Sequence[float], candidate_us: Sequence[float]) -> NDArray[np.float64]:
    if len(eager_us) != len(candidate_us) or not eager_us:
        raise ValueError(f"{len(eager_us)} eager samples do not pair with {len(candidate_us)} of the candidate")
    eager, candidate = np.asarray(eager_us, dtype=np.float64), np.asarray(candidate_us, dtype=np.float64)
    if not (np.all(eager > 0) and np.all(candidate > 0)):
        raise ValueError("a time is not positive")
    ratios: NDArray[np.float64] = eager / candidate
    return ratios


def _interval(middle: float, draws: NDArray[np.float64], confidence: float) -> Interval:
    tail = (1 - confidence) / 2
    low, high = np.quantile(draws, [tail, 1 - tail])
    return Interval(median=middle, low=min(float(low), middle), high=max(float(high), middle))
