"""Budgets and forecasts."""

from __future__ import annotations

import pytest

from kernelforge.search.allowance import forecast, spent
from kernelforge.search.events import SearchProgress
from kernelforge.search.types import Budget, StopReason


@pytest.mark.parametrize(
    ("budget", "done", "elapsed_s", "limit"),
    [
        (Budget(), 10_000, 1e9, None),
        (Budget(trials=5), 4, 1e9, None),
        (Budget(trials=5), 5, 0.0, "trials"),
        (Budget(trials=0), 0, 0.0, "trials"),
        (Budget(seconds=60.0), 0, 59.0, None),
        (Budget(seconds=60.0), 0, 60.0, "seconds"),
        (Budget(seconds=60.0), 4, 40.0, None),
        (Budget(seconds=60.0), 5, 55.0, "seconds"),
        (Budget(trials=5, seconds=60.0), 2, 59.0, "seconds"),
    ],
)
def test_what_ends_a_search(budget: Budget, done: int, elapsed_s: float, limit: StopReason | None) -> None:
    assert spent(budget, done=done, elapsed_s=elapsed_s) == limit


@pytest.mark.parametrize(
    ("budget", "done", "elapsed_s", "progress"),
    [
        (Budget(), 3, 30.0, SearchProgress(done=3, expected=None, eta_s=None)),
        (Budget(trials=5), 0, 0.0, SearchProgress(done=0, expected=5, eta_s=None)),
        (Budget(trials=5), 2, 20.0, SearchProgress(done=2, expected=5, eta_s=30.0)),
        (Budget(seconds=60.0), 0, 0.0, SearchProgress(done=0, expected=None, eta_s=60.0)),
        (Budget(seconds=60.0), 2, 20.0, SearchProgress(done=2, expected=6, eta_s=40.0)),
        (Budget(trials=5, seconds=60.0), 2, 40.0, SearchProgress(done=2, expected=3, eta_s=20.0)),
        (Budget(trials=3, seconds=60.0), 2, 20.0, SearchProgress(done=2, expected=3, eta_s=10.0)),
    ],
)
def test_forecast(budget: Budget, done: int, elapsed_s: float, progress: SearchProgress) -> None:
    assert forecast(budget, done=done, elapsed_s=elapsed_s) == progress
