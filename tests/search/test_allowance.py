"""Budgets and forecasts."""

from __future__ import annotations

import pytest

from kernelforge.errors import UsageError
from kernelforge.generate.types import Candidate
from kernelforge.search.allowance import Cost, charged, forecast, spent, unaffordable
from kernelforge.search.events import SearchProgress
from kernelforge.search.types import Budget, StopReason


def candidate(
    *, tokens_in: int | None = None, tokens_out: int | None = None, cost_usd: float | None = None
) -> Candidate:
    return Candidate(
        variant_id="v", source="//", backend="cpp", generator="talkative", tokens_in=tokens_in, tokens_out=tokens_out,
        cost_usd=cost_usd,
    )  # fmt: skip


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
    ("budget", "cost", "limit"),
    [
        (Budget(), Cost(proposals=9, tokens=10**9, usd=1e6), None),
        (Budget(tokens=1000), Cost(), None),
        (Budget(tokens=1000), Cost(proposals=1, tokens=500), None),
        (Budget(tokens=1000), Cost(proposals=1, tokens=501), "tokens"),
        (Budget(tokens=1000), Cost(proposals=4, tokens=800), None),
        (Budget(tokens=1000), Cost(proposals=5, tokens=1000), "tokens"),
        (Budget(tokens=1000), Cost(proposals=5, tokens=0), None),
        (Budget(usd=0.4), Cost(proposals=3, usd=0.1 + 0.1 + 0.1), None),
        (Budget(usd=0.4), Cost(proposals=4, usd=0.4), "usd"),
        (Budget(tokens=1000, usd=0.4), Cost(proposals=2, tokens=10, usd=0.3), "usd"),
    ],
)
def test_what_forbids_another_proposal(budget: Budget, cost: Cost, limit: StopReason | None) -> None:
    assert unaffordable(budget, cost) == limit


def test_costs_add_up_and_unknown_stays_unknown() -> None:
    cost = charged(Cost(), candidate(tokens_in=900, tokens_out=100, cost_usd=0.25), Budget())
    cost = charged(cost, candidate(tokens_in=300, tokens_out=200, cost_usd=0.5), Budget())
    assert cost == Cost(proposals=2, tokens=1500, usd=0.75)
    cost = charged(cost, candidate(tokens_in=10, cost_usd=0.25), Budget())
    assert cost == Cost(proposals=3, tokens=None, usd=1.0), "output tokens are not told, so the sum is not known"
    cost = charged(cost, candidate(tokens_in=10, tokens_out=10), Budget())
    assert cost == Cost(proposals=4, tokens=None, usd=None)


@pytest.mark.parametrize(("budget", "what"), [(Budget(usd=1.0), "dollars"), (Budget(tokens=100), "tokens")])
def test_a_limit_on_an_unknown_cost_is_refused(budget: Budget, what: str) -> None:
    with pytest.raises(UsageError, match=f"talkative generator .* {what}"):
        charged(Cost(), candidate(tokens_in=10), budget)
    free = charged(Cost(), candidate(tokens_in=0, tokens_out=0, cost_usd=0.0), budget)
    assert unaffordable(budget, free) is None, "0 is known"


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


@pytest.mark.parametrize(
    ("budget", "cost", "expected", "eta_s"),
    [
        (Budget(usd=1.0), Cost(proposals=4, usd=0.4), 10, 80.0),
        (Budget(tokens=1000), Cost(proposals=4, tokens=600), 6, 40.0),
        (Budget(trials=5, usd=1.0), Cost(proposals=4, usd=0.4), 5, 30.0),
        (Budget(tokens=1000), Cost(), None, None),
    ],
)
def test_forecast_by_cost(budget: Budget, cost: Cost, expected: int | None, eta_s: float | None) -> None:
    """Two trials are judged, of 10 s each; four are paid for."""
    assert forecast(budget, done=2, elapsed_s=20.0, cost=cost) == SearchProgress(
        done=2, expected=expected, eta_s=eta_s
    )  # fmt: skip
