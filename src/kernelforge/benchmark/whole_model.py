"""A paired A/B of two ways to run one model, in this process. Owns `PairedRuns`; knows nothing of dispatch.

The two alternate in ABBA order, so that drift of clocks and neighbours falls on both; the result is the distribution of
the paired ratio. On CUDA a run is timed by the wall clock with a synchronisation at its end: host overhead is part of
what a user waits for.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

from kernelforge.benchmark.statistics import paired_interval
from kernelforge.benchmark.types import Interval


@dataclass(frozen=True, slots=True, kw_only=True)
class PairedRuns:
    """Raw wall times, milliseconds per run, i-th with i-th a pair."""

    eager_ms: tuple[float, ...]
    fast_ms: tuple[float, ...]

    @property
    def speedup(self) -> Interval:
        return paired_interval(self.eager_ms, self.fast_ms)


def compare_runs(
    eager: Callable[[], object],
    fast: Callable[[], object],
    *,
    synchronize: Callable[[], None],
    around_fast: Callable[[], AbstractContextManager[object]] = nullcontext,
    budget_s: float = 10.0,
    max_pairs: int = 100,
    min_pairs: int = 5,
) -> PairedRuns:
    """Alternate the two until the time is up.

    Args:
        eager, fast: run the model once each.
        synchronize: waits for the device; does nothing on the CPU.
        around_fast: entered for each `fast` run before its clock starts: a program switches dispatch on once, not for
            every run.
        budget_s: wall seconds for all pairs, beyond the two warm-up runs of each.
    """

    def milliseconds(run: Callable[[], object]) -> float:
        synchronize()
        started = time.perf_counter()
        run()
        synchronize()
        return (time.perf_counter() - started) * 1e3

    def fast_milliseconds() -> float:
        with around_fast():
            return milliseconds(fast)

    for _ in range(2):
        milliseconds(eager)
        fast_milliseconds()
    eager_ms: list[float] = []
    fast_ms: list[float] = []
    deadline = time.perf_counter() + budget_s
    while len(eager_ms) < max_pairs and (len(eager_ms) < min_pairs or time.perf_counter() < deadline):
        if len(eager_ms) % 2 == 0:
            eager_ms.append(milliseconds(eager))
            fast_ms.append(fast_milliseconds())
        else:
            fast_ms.append(fast_milliseconds())
            eager_ms.append(milliseconds(eager))
    return PairedRuns(eager_ms=tuple(eager_ms), fast_ms=tuple(fast_ms))
