"""What a search would do with a budget, before it spends anything. Pure.

The trials are allotted by the very scheduler, on the assumption that none of them brings progress; what the model can
gain is Amdahl's law (Amdahl, AFIPS 1967) over the shares of its variants.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from kernelforge.benchmark.machine import MachineFacts
from kernelforge.benchmark.points import SETS_CAP_BYTES, representative_points, rotating_sets
from kernelforge.benchmark.roofline import floor_us
from kernelforge.cards.types import VariantRecord
from kernelforge.errors import NotFound
from kernelforge.generate.types import Candidate
from kernelforge.search.allowance import candidate_tokens
from kernelforge.search.scheduler import (
    Policy,
    VariantState,
    next_variant,
    park_reason,
    progress_chance,
    reference_node,
    state_of,
)
from kernelforge.search.types import Budget, Node
from kernelforge.verify.sizes import footprint_bytes

PROGRESS_WINS = 0.5
"""Of a variant's headroom, what progress is taken to win in the estimate: a guess by hand, no measurement."""

MOST_TRIALS = 10_000
"""No simulation goes beyond it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedVariant:
    """One variant of a plan.

    Attributes:
        eager_us: eager time of a call, as the judge timed it; before any such trial as captured.
        best_us: time of the best kernel, None if there is none.
        floor_us: roofline floor of a call, measured or expected; None if unknown.
        allotted: trials that the budget gives it.
        parked: why it gets none, or "".
    """

    record: VariantRecord
    state: VariantState
    eager_us: float
    best_us: float | None
    floor_us: float | None
    allotted: int
    parked: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Allowed:
    """How many trials a budget allows for.

    Attributes:
        trials: None if no limit can be told in trials.
        by: which limit it is, a field of `Budget`, or "".
        unknown: limits of which it is not known how many trials they allow for: there is no trial to learn it from.
    """

    trials: int | None
    by: str = ""
    unknown: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A plan, with speed-ups of the whole model over eager.

    Attributes:
        variants: in the order of the records.
        coverage: captured part of the model's time, in [0, 1]; the rest stays as it is.
        now: with the best kernels found so far.
        estimate: after the allotted trials, by `estimated_left`; None if the floor of a variant that gets some is
            unknown.
        bound: if every variant that the search can work on reached its floor; None if one of these is unknown.
        bound_all: if every variant that may be forged did, those included that the generator has no idea for; None if
            one of these is unknown.
        unknown_floors: share of the captured time of the variants that may be forged and whose floor is unknown.
    """

    variants: tuple[PlannedVariant, ...]
    allowed: Allowed
    coverage: float
    now: float
    estimate: float | None
    bound: float | None
    bound_all: float | None
    unknown_floors: float

    @property
    def allotted(self) -> int:
        return sum(v.allotted for v in self.variants)


def plan_search(
    records: Sequence[VariantRecord],
    nodes_of: Callable[[VariantRecord], Sequence[Node]],
    budget: Budget,
    policy: Policy,
    *,
    generator: str,
    others: Iterable[VariantRecord] = (),
    prior_floors: Mapping[str, float] | None = None,
    ideas: Mapping[str, int] | None = None,
    waiting: Mapping[str, int] | None = None,
    exhausted: Mapping[str, str] | None = None,
    coverage: float = 1.0,
) -> Plan:
    """The plan of one call of the search.

    Args:
        records: what it would work on. others: what else the model runs, for the gain of the whole.
        prior_floors: as in `SearchOptions`.
        ideas: variant id -> how many more proposals the generator has; without an entry they are not counted.
        waiting: variant id -> how many delivered candidates are to be judged, which is done before anything is asked.
        exhausted: variant id -> why it has none.
    """
    nodes = {r.variant.id: nodes_of(r) for r in records}
    reasons = {r.variant.id: r.forgeable or (exhausted or {}).get(r.variant.id, "") for r in records}
    states = [
        state_of(
            r, nodes[r.variant.id], since=_newest(nodes[r.variant.id]), exhausted=reasons[r.variant.id],
            prior_floor=(prior_floors or {}).get(r.variant.id, 0.0),
        )
        for r in records
    ]  # fmt: skip
    allowed = allowed_trials(budget, [n for own in nodes.values() for n in own], generator=generator)
    trials = allotments(states, policy, trials=allowed.trials, ideas=ideas or {}, waiting=waiting or {})
    variants = tuple(
        _planned(r, s, nodes[s.variant_id], trials[s.variant_id], policy) for r, s in zip(records, states, strict=True)
    )
    rest = sum(state_of(r, nodes_of(r)).left * r.share for r in others)
    rest += max(0.0, 1.0 - sum(r.share for r in (*records, *others)))
    forgeable = [v.state for v in variants if not v.record.forgeable]

    def speedup(left: Callable[[PlannedVariant], float]) -> float:
        return whole_speedup(rest + sum(v.state.share * left(v) for v in variants), coverage)

    def reached(which: Callable[[PlannedVariant], bool], left: Callable[[PlannedVariant], float]) -> float | None:
        """With `left` of the variants that `which` picks; None if the floor of one of them is unknown."""
        if any(which(v) and v.state.share > 0 and not v.state.least > 0 for v in variants):
            return None
        return speedup(lambda v: left(v) if which(v) else v.state.left)

    def at_floor(variant: PlannedVariant) -> float:
        return variant.state.left - variant.state.headroom

    return Plan(
        variants=variants, allowed=allowed, coverage=coverage,
        now=speedup(lambda v: v.state.left),
        estimate=reached(lambda v: v.allotted > 0, lambda v: estimated_left(v.state, policy, v.allotted)),
        bound=reached(lambda v: not v.state.exhausted, at_floor),
        bound_all=reached(lambda v: not v.record.forgeable, at_floor),
        unknown_floors=math.fsum(s.share for s in forgeable if not s.least > 0),
    )  # fmt: skip


def allotments(
    states: Sequence[VariantState],
    policy: Policy,
    *,
    trials: int | None,
    ideas: Mapping[str, int],
    waiting: Mapping[str, int] | None = None,
) -> dict[str, int]:
    """Trials per variant id, as the scheduler gives them if none is progress.

    Args:
        trials: all together; None until every variant is parked or exhausted.
        ideas, waiting: as in `plan_search`.
    """
    now = {s.variant_id: s for s in states}
    given, asked = dict.fromkeys(now, 0), dict.fromkeys(now, 0)
    delivered = deque(key for key, count in (waiting or {}).items() for _ in range(count))
    for _ in range(MOST_TRIALS if trials is None else min(trials, MOST_TRIALS)):
        if delivered:
            chosen: VariantState | None = now[delivered.popleft()]
        else:
            chosen = next_variant(now.values(), policy)
            if chosen is not None:
                asked[chosen.variant_id] += 1
        if chosen is None:
            break
        key = chosen.variant_id
        given[key] += 1
        now[key] = replace(
            chosen, trials=chosen.trials + 1, judged=chosen.judged + 1, stalled=chosen.stalled + 1,
            exhausted="no more ideas" if asked[key] and asked[key] == ideas.get(key) else chosen.exhausted,
        )  # fmt: skip
    return given


def estimated_left(state: VariantState, policy: Policy, trials: int) -> float:
    """Expected time after some trials, as a fraction of eager's: progress wins half of the headroom.

    With the chance of progress that the scheduler counts on. The floor must be known.
    """
    return state.left - PROGRESS_WINS * state.headroom * progress_chance(state, policy, trials)


def whole_speedup(left: float, coverage: float) -> float:
    """Amdahl's law: the model's speed-up if the captured part of its time, `coverage`, shrinks to the fraction `left`.

    Infinite if nothing is left.
    """
    time = 1.0 - coverage + coverage * left
    return 1.0 / time if time > 0 else math.inf


def allowed_trials(budget: Budget, nodes: Sequence[Node], *, generator: str) -> Allowed:
    """How many trials a budget allows for, by what those of the project took and cost on average.

    Args:
        generator: whose candidates tell the cost.
    """
    limits: dict[str, int] = {} if budget.trials is None else {"trials": budget.trials}
    unknown = []
    for name, limit, per_trial in (
        ("seconds", budget.seconds, lambda: [n.seconds for n in nodes]),
        ("tokens", budget.tokens, lambda: [candidate_tokens(c) for c in _candidates(nodes, generator)]),
        ("usd", budget.usd, lambda: [c.cost_usd for c in _candidates(nodes, generator)]),
    ):
        if limit is None:
            continue
        known = [float(v) for v in per_trial() if v is not None]
        mean = sum(known) / len(known) if known else 0.0
        if mean > 0:
            limits[name] = math.floor(limit / mean * (1 + 1e-9))
        elif not known:
            unknown.append(name)
    by = min(limits, key=lambda name: limits[name], default="")
    return Allowed(trials=limits.get(by), by=by, unknown=tuple(unknown))


def prior_floors(records: Iterable[VariantRecord], facts: MachineFacts | None) -> dict[str, float]:
    """Variant id -> roofline floor as a fraction of the captured eager time, where it can be known without a trial.

    Args:
        facts: of the machine; without them nothing is known.
    """
    floors = {}
    for record in records:
        floor = prior_floor_us(record, facts)
        if floor is not None and record.eager_us > 0:
            floors[record.variant.id] = min(1.0, floor / record.eager_us)
    return floors


def prior_floor_us(record: VariantRecord, facts: MachineFacts | None) -> float | None:
    """The floor that a trial would report, microseconds per call; None if bytes or bandwidth are unknown.

    At the sizes that would be timed, and at the level of memory that their buffer sets would fill.
    """
    variant = record.variant
    if facts is None or record.forgeable:
        return None
    total, calls = 0.0, 0
    for point, count, _ in representative_points(record):
        sets = rotating_sets(variant, point.dims, facts, cap_bytes=SETS_CAP_BYTES[variant.device])
        footprint = footprint_bytes(variant, point.dims) * (1 if variant.mutates else sets)
        peak = facts.flops_per_second(variant.tensors[0].dtype) if variant.tensors else 0.0
        try:
            floor = floor_us(
                variant, point.dims, point.scalars, bytes_per_second=facts.bytes_per_second(footprint),
                flops_per_second=peak, launch_us=facts.launch_us,
            )  # fmt: skip
        except NotFound:
            return None  # an operator of a plug-in that is not installed here
        total, calls = total + count * floor, calls + count
    return total / calls if calls else None


def _planned(
    record: VariantRecord, state: VariantState, nodes: Sequence[Node], allotted: int, policy: Policy
) -> PlannedVariant:
    reference = reference_node(nodes)
    timed = None if reference is None else reference.summary
    eager_us = (timed.eager_us if timed is not None else None) or record.eager_us
    return PlannedVariant(
        record=record, state=state, eager_us=eager_us,
        best_us=timed.candidate_us if timed is not None and timed.speedup is not None else None,
        floor_us=state.least * eager_us if state.least > 0 else None, allotted=allotted,
        parked=park_reason(state, policy),
    )  # fmt: skip


def _newest(nodes: Sequence[Node]) -> int:
    """As at the start of a search: failures of the judge before it do not count."""
    return nodes[-1].number if nodes else 0


def _candidates(nodes: Sequence[Node], generator: str) -> list[Candidate]:
    return [n.candidate for n in nodes if n.candidate.generator == generator]
