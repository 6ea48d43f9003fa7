"""Which variant gets the next trial. Pure: a function of the stored nodes and of what is in flight.

Policy `gain`: first every variant gets a few trials, one after the other, largest share first. Then the next trial goes
where it can win most of the model's time: runtime share x headroom down to the roofline floor x the chance of progress,
which is lower against a vendor's library. That is the task scheduler of Ansor (Zheng et al., OSDI 2020, section 6) with
a bound by the machine in place of the extrapolated slope. Parked are variants at the floor, those without progress for
long, those that stay slower than a vendor's library, and those that cannot move the model.

Policy `uniform`, the paper's: the same number of trials for every variant, whatever comes of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from kernelforge.cards.types import VariantRecord
from kernelforge.errors import NotFound
from kernelforge.operators import get_operator
from kernelforge.search.lineage import Standing, speedup_of
from kernelforge.search.types import Node
from kernelforge.wording import three_digits

PROGRESS = 1.01
"""A node is progress when its median speed-up exceeds the best before it by this factor: less is noise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """Constants of the scheduler. Warm-up and patience are what docs/search-ablation.md supports, the others by hand.

    Attributes:
        allot: "gain" looks at what a trial may win; "uniform" only at how many trials a variant has had, and parks
            nothing. What the generator has no more ideas for, and what the judge fails on, ends under either.
        warm_up: trials that each variant gets before shares and headroom decide.
        patience: trials without progress after which a variant is parked; None never parks for that.
        floor_ratio: at most this multiple of the roofline floor counts as at the floor.
        min_gain: share of the model's time that a variant must still be able to win.
        vendor_trials: judged trials after which a variant that a vendor's library serves must have come as close to it
            as `vendor_ratio`. The default is the four designs that `best-first` begins with, and four revisions.
        vendor_ratio: speed-up below which a variant has not come close.
        vendor_handicap: trials without progress that count as seen before the first against a vendor's library.
        max_worker_failures: failures of the judge in a row, in this call, after which a variant is left alone.
    """

    allot: Literal["gain", "uniform"] = "gain"
    warm_up: int = 1
    patience: int | None = 24
    floor_ratio: float = 1.1
    min_gain: float = 0.0005
    vendor_trials: int = 8
    vendor_ratio: float = 0.98
    vendor_handicap: int = 4
    max_worker_failures: int = 3


POLICIES: Mapping[str, Policy] = {"gain": Policy(), "uniform": Policy(allot="uniform")}
"""As on the command line."""


def get_policy(name: str) -> Policy:
    """The policy of that name.

    Raises:
        NotFound: there is none.
    """
    if name not in POLICIES:
        raise NotFound(f"no policy {name!r}", hint=f"known: {', '.join(POLICIES)}")
    return POLICIES[name]


@dataclass(frozen=True, slots=True, kw_only=True)
class VariantState:
    """What the scheduler knows of a variant.

    Attributes:
        share: runtime share, in [0, 1].
        trials: stored and in flight. judged: stored, failures of the judge left out.
        stalled: judged trials since the last progress. In all three a proposal with its repairs is one.
        speedup: median of the best node, 0.0 if there is none.
        left: time of the faster of eager and the best node, as a fraction of eager's.
        floor: measured roofline floor as a fraction of eager's time; 0.0 if unknown.
        prior_floor: the same as bytes and machine alone say it, until a trial has measured it. It orders, and never
            parks: the eager time of the capture is not that of the judge.
        vendor: a vendor's library does the work in eager.
        worker_failures: of the judge, in a row, in this call.
        exhausted: the generator's reason, or "".
    """

    variant_id: str
    share: float
    trials: int = 0
    judged: int = 0
    stalled: int = 0
    speedup: float = 0.0
    left: float = 1.0
    floor: float = 0.0
    prior_floor: float = 0.0
    vendor: bool = False
    worker_failures: int = 0
    exhausted: str = ""

    @property
    def least(self) -> float:
        """The floor, measured or else expected."""
        return self.floor or self.prior_floor

    @property
    def headroom(self) -> float:
        """Fraction of eager's time that could still be won."""
        return max(0.0, self.left - self.least)

    @property
    def most(self) -> float:
        """Share of the model's time that could still be won, for all that was measured."""
        return self.share * max(0.0, self.left - self.floor)


def state_of(
    record: VariantRecord,
    nodes: Sequence[Node],
    *,
    in_flight: int = 0,
    since: int = 0,
    exhausted: str = "",
    prior_floor: float = 0.0,
) -> VariantState:
    """Summarise a variant's nodes.

    Args:
        in_flight: trials prepared or under judgement, not stored yet.
        since: number of the last node before this call of the search; worker failures count only after it, so that a
            repaired machine gets another chance.
        prior_floor: see `VariantState`.
    """
    return GrowingState(record, since=since, prior_floor=prior_floor).state(
        nodes, in_flight=in_flight, exhausted=exhausted
    )


class GrowingState:
    """`state_of` for one list of nodes that only grows: each of them is looked at once."""

    def __init__(self, record: VariantRecord, *, since: int = 0, prior_floor: float = 0.0) -> None:
        """As `state_of`."""
        self._record = record
        self._since, self._prior_floor = since, prior_floor
        self._seen = self._proposals = self._judged = self._failures = 0
        self._standing = Standing()
        self._begun: dict[str, float] = {}
        self._newest, self._fastest, self._stalled = 0.0, 0.0, 0
        self._out_of_turn = False

    def state(self, nodes: Sequence[Node], *, in_flight: int = 0, exhausted: str = "") -> VariantState:
        """As `state_of`."""
        for node in nodes[self._seen :]:
            self._add(node)
        self._seen = len(nodes)
        if self._out_of_turn:
            self._start_over()
        best = self._standing.best
        left, floor = _time_left(best or self._standing.newest_timed)
        return VariantState(
            variant_id=self._record.variant.id, share=self._record.share, trials=self._proposals + in_flight,
            judged=self._judged, stalled=self._stalled, speedup=(speedup_of(best) or 0.0) if best is not None else 0.0,
            left=left, floor=floor, prior_floor=self._prior_floor, vendor=is_vendors(self._record.variant.operator),
            worker_failures=self._failures, exhausted=exhausted,
        )  # fmt: skip

    def _add(self, node: Node) -> None:
        is_repair = bool(node.summary.repairs)
        self._proposals += not is_repair
        if node.kind == "worker_failure":
            self._failures += node.number > self._since
            return
        self._failures = 0
        self._judged += not is_repair
        self._standing.add(node)
        # A merge brings trials out of their turn; a candidate that is judged again may lose the speed-up that was the
        # bar for progress.
        self._out_of_turn |= node.started < self._newest or node.candidate_id in self._begun
        self._newest = max(self._newest, node.started)
        self._begun[node.candidate_id] = min(node.started, self._begun.get(node.candidate_id, node.started))
        self._count(node)

    def _start_over(self) -> None:
        """Count progress anew, in the order in which the candidates were first judged."""
        self._fastest, self._stalled, self._out_of_turn = 0.0, 0, False
        for node in sorted(self._standing.nodes, key=lambda n: (self._begun[n.candidate_id], n.candidate_id)):
            self._count(node)

    def _count(self, node: Node) -> None:
        speedup = node.summary.speedup
        if speedup is not None and speedup > PROGRESS * self._fastest:
            self._fastest, self._stalled = speedup, 0
        elif not node.summary.repairs:
            self._stalled += 1


def is_vendors(operator: str) -> bool:
    """Whether a vendor's library does the operator's work in eager. One of a plug-in may be unknown here."""
    try:
        return get_operator(operator).provider == "vendor"
    except NotFound:
        return False


def park_reason(state: VariantState, policy: Policy) -> str:
    """Why the variant gets no more trials, or ""."""
    if state.exhausted:
        return state.exhausted
    if state.worker_failures >= policy.max_worker_failures:
        return f"the judge failed {state.worker_failures} times in a row"
    if policy.allot == "uniform":
        return ""
    if state.floor > 0.0 and state.left <= policy.floor_ratio * state.floor:
        faster = "the best kernel" if state.left < 1.0 else "eager"
        return (
            f"{faster} takes {three_digits(state.left / state.floor)}x the roofline floor, where little is left to win"
        )
    if state.most < policy.min_gain:
        return (
            f"it can win at most {100 * state.most:.3f}% of the model's time, and below "
            f"{100 * policy.min_gain:g}% no trial is spent"
        )
    if state.vendor and state.judged >= policy.vendor_trials and state.speedup < policy.vendor_ratio:
        best = f"the best kernel has {three_digits(state.speedup)}x" if state.speedup else "no kernel is valid"
        return f"{best} after {state.judged} trials against a vendor's library"
    if policy.patience is not None and state.stalled >= policy.patience:
        return f"no progress in {state.stalled} trials"
    return ""


def progress_chance(state: VariantState, policy: Policy, trials: int = 1) -> float:
    """Chance that some of the next `trials` trials is progress, in [0, 1).

    By Laplace's rule the next trial after s without progress has the chance 1 / (2 + s), so that n of them together
    have n / (1 + s + n). Trials in flight do not count.
    """
    seen = state.stalled + (policy.vendor_handicap if state.vendor else 0)
    return trials / (1.0 + seen + trials)


def expected_gain(state: VariantState, policy: Policy) -> float:
    """Share of the model's time that one more trial may win: share x headroom x chance of progress."""
    return state.share * state.headroom * progress_chance(state, policy)


def next_variant(states: Iterable[VariantState], policy: Policy) -> VariantState | None:
    """The variant that gets the next trial, or None if all are exhausted or parked. The order of `states` is moot."""
    open_states = [s for s in states if not park_reason(s, policy)]
    warming = [s for s in open_states if policy.allot == "uniform" or s.trials < policy.warm_up]
    if warming:
        return min(warming, key=lambda s: (s.trials, -s.share, s.variant_id))
    return min(open_states, key=lambda s: (-expected_gain(s, policy), s.variant_id), default=None)


def reference_node(nodes: Sequence[Node]) -> Node | None:
    """The node whose measurement stands for the variant: the best, else the newest one that was timed."""
    standing = Standing(nodes)
    return standing.best or standing.newest_timed


def _time_left(reference: Node | None) -> tuple[float, float]:
    """(time of the faster of eager and best, floor) as fractions of eager's time, by the best or newest measurement."""
    if reference is None:
        return 1.0, 0.0
    known = reference.summary
    if not known.eager_us or known.candidate_us is None or known.floor_us is None:
        return 1.0, 0.0
    best_us = known.candidate_us if known.speedup is not None else known.eager_us
    return min(1.0, best_us / known.eager_us), known.floor_us / known.eager_us
