"""Budgets as pure arithmetic: whether one more trial or proposal fits, and how long the rest will take."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypeVar, cast

from kernelforge.errors import UsageError
from kernelforge.generate.types import Candidate, NoCandidate, OutOfBudget
from kernelforge.search.events import SearchProgress
from kernelforge.search.types import Budget, StopReason

Number = TypeVar("Number", int, float)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What the proposals of one call of the search cost so far, those that were dropped included.

    Attributes:
        tokens: read and written. usd: US dollars. Each None as soon as one proposal does not say it: unknown is not 0.
    """

    proposals: int = 0
    tokens: int | None = 0
    usd: float | None = 0.0


def paid(cost: Cost, proposal: Candidate | NoCandidate | OutOfBudget) -> Cost:
    """The cost with one more proposal of a generator that keeps the limits by its own account."""
    return Cost(
        proposals=cost.proposals + (not isinstance(proposal, OutOfBudget)),
        tokens=added(cost.tokens, candidate_tokens(proposal)), usd=added(cost.usd, proposal.cost_usd),
    )  # fmt: skip


def charged(cost: Cost, candidate: Candidate, budget: Budget) -> Cost:
    """The cost with one more proposal.

    Raises:
        UsageError: the budget limits what the proposal does not tell.
    """
    tokens, usd = candidate_tokens(candidate), candidate.cost_usd
    for limit, told, what in ((budget.tokens, tokens, "tokens"), (budget.usd, usd, "dollars")):
        if limit is not None and told is None:
            raise UsageError(
                f"the {candidate.generator} generator does not tell what a proposal costs in {what}, so that a limit "
                "on them cannot be kept",
                hint="limit trials or time instead",
            )
    return paid(cost, candidate)


def added(spent: Number | None, more: Number | None) -> Number | None:
    """None if either is unknown: that is not 0."""
    return None if spent is None or more is None else spent + more


def candidate_tokens(candidate: Candidate | NoCandidate | OutOfBudget) -> int | None:
    """Tokens read and written for a proposal, None if either is unknown."""
    if candidate.tokens_in is None or candidate.tokens_out is None:
        return None
    return candidate.tokens_in + candidate.tokens_out


def spent(budget: Budget, *, done: int, elapsed_s: float) -> StopReason | None:
    """Which limit forbids one more trial, or None.

    A trial that takes as long as the mean of those before would have to end within `budget.seconds`; the first one is
    tried as long as any time is left.
    """
    if budget.trials is not None and done >= budget.trials:
        return "trials"
    if budget.seconds is not None and not _fits(elapsed_s, done, budget.seconds):
        return "seconds"
    return None


def unaffordable(budget: Budget, cost: Cost, *, under_way: int = 0) -> StopReason | None:
    """Which limit forbids to ask for one more proposal, or None.

    As with time: one that costs what those before did on average would have to fit, beside those `under_way`. What an
    unknown cost limits is refused by `charged`.
    """
    used: float | None
    for limit, used, reason in ((budget.tokens, cost.tokens, "tokens"), (budget.usd, cost.usd, "usd")):
        if limit is not None and used is not None and not _fits(used, cost.proposals, limit, under_way=under_way):
            return cast(StopReason, reason)
    return None


def forecast(budget: Budget, *, done: int, elapsed_s: float, cost: Cost | None = None) -> SearchProgress:
    """Expected trials and seconds left if trials go on taking and costing what they did on average."""
    mean_s = elapsed_s / done if done and elapsed_s > 0 else None
    trials: list[int] = []
    seconds: list[float] = []
    if budget.trials is not None:
        trials.append(budget.trials)
    for limit, used in ((budget.tokens, cost and cost.tokens), (budget.usd, cost and cost.usd)):
        if limit is not None and used and cost is not None:
            trials.append(math.floor(limit / (used / cost.proposals)))
    trials = [max(t, done) for t in trials]
    if trials and mean_s is not None:
        seconds.append((min(trials) - done) * mean_s)
    if budget.seconds is not None:
        left_s = max(0.0, budget.seconds - elapsed_s)
        seconds.append(left_s)
        if mean_s is not None:
            trials.append(done + math.floor(left_s / mean_s))
    return SearchProgress(
        done=done, expected=min(trials) if trials else None, eta_s=min(seconds) if seconds else None
    )  # fmt: skip


def _fits(used: float, count: int, limit: float, *, under_way: int = 0) -> bool:
    """Whether one more that uses the mean of the `count` before stays within the limit, beside those under way.

    The first does if anything is left; as long as its use is unknown, no second one does beside it.
    """
    if not count:
        return used < limit and not under_way
    # Cents do not add up exactly in binary.
    return used < limit and used + (1 + under_way) * used / count <= limit * (1 + 1e-9)
