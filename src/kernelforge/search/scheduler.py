"""Which variant gets the next trial. Pure: a function of the stored nodes and of what is in flight.

First every variant gets a few trials, one after the other, largest share first. Then the next trial goes where it can
win most of the model's time: runtime share x headroom down to the roofline floor x the chance of progress. Parked are
variants at the floor, those without progress for long, and those that cannot move the model.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kernelforge.cards.types import VariantRecord
from kernelforge.evaluate.types import Scored, WorkerFailure
from kernelforge.search.lineage import best_node, speedup_of, standing
from kernelforge.search.types import Node

PROGRESS = 1.01
"""A node is progress when its median speed-up exceeds the best before it by this factor: less is noise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """Constants of the scheduler.

    Attributes:
        warm_up: trials that each variant gets before shares and headroom decide.
        patience: trials without progress after which a variant is parked; None never parks for that.
        floor_ratio: at most this multiple of the roofline floor counts as at the floor.
        min_gain: share of the model's time that a variant must still be able to win.
        max_worker_failures: failures of the judge in a row, in this call, after which a variant is left alone.
    """

    warm_up: int = 3
    patience: int | None = 12
    floor_ratio: float = 1.1
    min_gain: float = 0.0005
    max_worker_failures: int = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class VariantState:
    """What the scheduler knows of a variant.

    Attributes:
        share: runtime share, in [0, 1].
        trials: stored and in flight.
        stalled: judged trials since the last progress.
        left: time of the faster of eager and the best node, as a fraction of eager's.
        floor: roofline floor as a fraction of eager's time; 0.0 if unknown.
        worker_failures: of the judge, in a row, in this call.
        exhausted: the generator's reason, or "".
    """

    variant_id: str
    share: float
    trials: int = 0
    stalled: int = 0
    left: float = 1.0
    floor: float = 0.0
    worker_failures: int = 0
    exhausted: str = ""

    @property
    def headroom(self) -> float:
        """Fraction of eager's time that could still be won."""
        return max(0.0, self.left - self.floor)


def state_of(
    record: VariantRecord, nodes: Sequence[Node], *, in_flight: int = 0, since: int = 0, exhausted: str = ""
) -> VariantState:
    """Summarise a variant's nodes.

    Args:
        in_flight: trials prepared or under judgement, not stored yet.
        since: number of the last node before this call of the search; worker failures count only after it, so that a
            repaired machine gets another chance.
    """
    left, floor = _time_left(nodes)
    return VariantState(
        variant_id=record.variant.id, share=record.share, trials=len(nodes) + in_flight, stalled=_stalled(nodes),
        left=left, floor=floor, worker_failures=_trailing_failures([n for n in nodes if n.number > since]),
        exhausted=exhausted,
    )  # fmt: skip


def park_reason(state: VariantState, policy: Policy) -> str:
    """Why the variant gets no more trials, or ""."""
    if state.exhausted:
        return state.exhausted
    if state.worker_failures >= policy.max_worker_failures:
        return f"the judge failed {state.worker_failures} times in a row"
    if state.floor > 0.0 and state.left <= policy.floor_ratio * state.floor:
        return f"at {state.left / state.floor:.2f}x the roofline floor"
    if state.share * state.headroom < policy.min_gain:
        return f"can win at most {100 * state.share * state.headroom:.3f}% of the model's time"
    if policy.patience is not None and state.stalled >= policy.patience:
        return f"no progress in {state.stalled} trials"
    return ""


def expected_gain(state: VariantState) -> float:
    """Share of the model's time that one more trial may win: share x headroom x chance of progress.

    The chance is that of Laplace's rule after `stalled` failures to improve, trials in flight not counted.
    """
    return state.share * state.headroom / (2.0 + state.stalled)


def next_variant(states: Iterable[VariantState], policy: Policy) -> VariantState | None:
    """The variant that gets the next trial, or None if all are exhausted or parked. The order of `states` is moot."""
    open_states = [s for s in states if not park_reason(s, policy)]
    warming = [s for s in open_states if s.trials < policy.warm_up]
    if warming:
        return min(warming, key=lambda s: (s.trials, -s.share, s.variant_id))
    return min(open_states, key=lambda s: (-expected_gain(s), s.variant_id), default=None)


def _time_left(nodes: Sequence[Node]) -> tuple[float, float]:
    """(time of the faster of eager and best, floor) as fractions of eager's time, by the best or newest measurement."""
    reference = best_node(nodes) or next((n for n in reversed(standing(nodes)) if isinstance(n.outcome, Scored)), None)
    if reference is None or not isinstance(reference.outcome, Scored):
        return 1.0, 0.0
    measurement = reference.outcome.measurement
    if not measurement.eager_us > 0:
        return 1.0, 0.0
    best_us = measurement.candidate_us if speedup_of(reference) is not None else measurement.eager_us
    return min(1.0, best_us / measurement.eager_us), measurement.floor_us / measurement.eager_us


def _stalled(nodes: Sequence[Node]) -> int:
    best, stalled = 0.0, 0
    for node in nodes:
        if isinstance(node.outcome, WorkerFailure):
            continue
        speedup = speedup_of(node)
        if speedup is not None and speedup > PROGRESS * best:
            best, stalled = speedup, 0
        else:
            stalled += 1
    return stalled


def _trailing_failures(nodes: Sequence[Node]) -> int:
    count = 0
    for node in reversed(nodes):
        if not isinstance(node.outcome, WorkerFailure):
            break
        count += 1
    return count
