"""Budgets as pure arithmetic: whether one more trial fits, and how long the rest will take."""

from __future__ import annotations

import math

from kernelforge.search.events import SearchProgress
from kernelforge.search.types import Budget, StopReason


def spent(budget: Budget, *, done: int, elapsed_s: float) -> StopReason | None:
    """Which limit forbids one more trial, or None.

    A trial that takes as long as the mean of those before would have to end within `budget.seconds`; the first one is
    tried as long as any time is left.
    """
    if budget.trials is not None and done >= budget.trials:
        return "trials"
    if budget.seconds is not None:
        mean_s = elapsed_s / done if done else 0.0
        if elapsed_s >= budget.seconds or elapsed_s + mean_s > budget.seconds:
            return "seconds"
    return None


def forecast(budget: Budget, *, done: int, elapsed_s: float) -> SearchProgress:
    """Expected trials and seconds left if trials go on taking what they took on average."""
    mean_s = elapsed_s / done if done and elapsed_s > 0 else None
    trials: list[int] = []
    seconds: list[float] = []
    if budget.trials is not None:
        trials.append(max(budget.trials, done))
        if mean_s is not None:
            seconds.append((trials[0] - done) * mean_s)
    if budget.seconds is not None:
        left_s = max(0.0, budget.seconds - elapsed_s)
        seconds.append(left_s)
        if mean_s is not None:
            trials.append(done + math.floor(left_s / mean_s))
    return SearchProgress(
        done=done, expected=min(trials) if trials else None, eta_s=min(seconds) if seconds else None
    )  # fmt: skip
