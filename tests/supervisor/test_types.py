"""Shares of a budget, and the state of a run."""

from __future__ import annotations

import pytest

from kernelforge.search.types import Budget
from kernelforge.supervisor.types import Run, Stage, State, Wish, WorkerState, state_of


def test_workers_share_all_but_the_time() -> None:
    budget = Budget(trials=7, seconds=60.0, tokens=10, usd=3.0)
    run = Run(id="a", created=0.0, budget=budget, devices=("0", "1", "2"))
    shares = [run.share(i) for i in range(3)]
    assert [s.trials for s in shares] == [3, 2, 2] and [s.tokens for s in shares] == [4, 3, 3]
    assert [(s.seconds, s.usd) for s in shares] == [(60.0, 1.0)] * 3
    assert Run(id="a", created=0.0, budget=Budget()).share(0) == Budget()


def test_what_is_left_of_a_budget() -> None:
    worker = WorkerState(trials=4, seconds=70.0, tokens=7, usd=1.0)
    left = worker.left_of(Budget(trials=6, seconds=60.0, tokens=5, usd=4.0))
    assert left == Budget(trials=2, seconds=0.0, tokens=0, usd=3.0)
    assert worker.left_of(Budget()) == Budget()


def test_what_is_not_known_is_not_nothing() -> None:
    left = WorkerState(tokens=None, usd=None).left_of(Budget(trials=6, tokens=5, usd=4.0))
    assert left == Budget(trials=6, tokens=0, usd=0.0)
    assert WorkerState(tokens=None, usd=None).left_of(Budget(trials=6)) == Budget(trials=6)


@pytest.mark.parametrize(
    ("stages", "live", "wish", "state"),
    [
        (["starting"], (0,), "run", "starting"),
        (["running"], (0,), "pause", "pausing"),
        (["paused"], (0,), "pause", "paused"),
        (["paused"], (0,), "run", "running"),
        (["paused", "running"], (0, 1), "pause", "pausing"),
        (["paused", "finished"], (0,), "pause", "paused"),
        (["paused"], (0,), "stop", "stopping"),
        (["running", "running"], (1,), "run", "running"),
        (["running", "finished"], (), "run", "died"),
        (["unknown", "running"], (1,), "run", "running"),
        (["unknown", "running"], (), "run", "died"),
        (["unknown", "failed"], (), "stop", "unknown"),
        (["failed", "finished"], (), "run", "failed"),
        (["stopped", "finished"], (), "stop", "stopped"),
        (["cancelled", "cancelled"], (), "run", "cancelled"),
        (["finished", "finished"], (), "pause", "finished"),
    ],
)
def test_state_of_a_run(stages: list[Stage], live: tuple[int, ...], wish: Wish, state: State) -> None:
    assert state_of(tuple(WorkerState(stage=s) for s in stages), live, wish) == state
