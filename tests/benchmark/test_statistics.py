"""Paired statistics."""

from __future__ import annotations

import numpy as np
import pytest

from kernelforge.benchmark.statistics import Pairs, half_width, median, paired_interval, variant_interval, widened
from kernelforge.benchmark.types import Interval


def noisy(mean: float, count: int, seed: int) -> tuple[float, ...]:
    generator = np.random.default_rng(seed)
    return tuple(float(x) for x in mean * (1 + 0.05 * np.abs(generator.standard_normal(count))))


def test_the_interval_holds_the_true_ratio() -> None:
    interval = paired_interval(noisy(200.0, 40, 1), noisy(100.0, 40, 2))
    assert interval.low <= 2.0 * 1.03 and interval.high >= 2.0 * 0.97
    assert interval.low <= interval.median <= interval.high


def test_equal_sides_contain_one() -> None:
    hits = 0
    for seed in range(50):
        interval = paired_interval(noisy(10.0, 20, seed), noisy(10.0, 20, 1000 + seed))
        hits += interval.low <= 1.0 <= interval.high
    assert hits >= 45


def test_drift_cancels_in_pairs() -> None:
    drift = np.linspace(1, 3, 30)
    interval = paired_interval(tuple(3.0 * drift), tuple(1.0 * drift))
    assert half_width(interval) < 1e-9 and interval.median == pytest.approx(3.0)


def test_the_same_samples_give_the_same_interval() -> None:
    eager, candidate = noisy(5.0, 9, 3), noisy(4.0, 9, 4)
    assert paired_interval(eager, candidate) == paired_interval(eager, candidate)


def test_a_variant_is_weighted_by_its_calls() -> None:
    fast = Pairs(calls=1, eager_us=(100.0,) * 5, candidate_us=(10.0,) * 5)
    slow = Pairs(calls=99, eager_us=(100.0,) * 5, candidate_us=(200.0,) * 5)
    speedup, eager_us, candidate_us = variant_interval([fast, slow])
    assert eager_us == pytest.approx(100.0) and candidate_us == pytest.approx((10 + 99 * 200) / 100)
    assert speedup.median == pytest.approx(eager_us / candidate_us)


@pytest.mark.parametrize(("eager", "candidate"), [((), ()), ((1.0,), ()), ((1.0,), (0.0,)), ((-1.0,), (1.0,))])
def test_nonsense_is_refused(eager: tuple[float, ...], candidate: tuple[float, ...]) -> None:
    with pytest.raises(ValueError):
        paired_interval(eager, candidate)


def test_median_of_nothing() -> None:
    with pytest.raises(ValueError, match="no samples"):
        median(())


def test_what_samples_cannot_show_widens_the_interval_of_short_calls() -> None:
    seen = Interval(low=1.03, median=1.04, high=1.05)
    short = widened(seen, eager_us=2.0, candidate_us=1.9, either_us=0.1)
    assert (short.low, short.median, short.high) == pytest.approx((1.03 * 0.95, 1.04, 1.05 * 1.05))
    long = widened(seen, eager_us=2000.0, candidate_us=1900.0, either_us=0.1)
    assert long.low > 1.0299
