"""What a variant's stored nodes say: which judgement of a candidate stands, the best node, and the generator's history.

Pure functions of the nodes, so that a resumed search and an uninterrupted one see the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, TypeAlias, assert_never

from kernelforge.audit.types import AuditKind
from kernelforge.build.types import BuildFailure
from kernelforge.cards.types import VariantRecord
from kernelforge.evaluate.types import Outcome, Scored, WorkerFailure
from kernelforge.explain.outcome import explain
from kernelforge.generate.types import Feedback
from kernelforge.search.types import Node
from kernelforge.verify.types import Rejected

OutcomeKind: TypeAlias = Literal["accepted", "rejected", "build_failure", "worker_failure"]

JUDGE_AGAIN = 2
"""A candidate that the judge could not judge is offered to it this often in all, then counts as tried."""


def outcome_kind(outcome: Outcome) -> OutcomeKind:
    """The one word for an outcome, in the store, in feedback and in reports."""
    match outcome:
        case Scored():
            return "accepted"
        case Rejected():
            return "rejected"
        case BuildFailure():
            return "build_failure"
        case WorkerFailure():
            return "worker_failure"
        case _:
            assert_never(outcome)


def feedback_of(node: Node) -> Feedback:
    """A node as the generator sees it."""
    outcome = node.outcome
    speedup = outcome.measurement.speedup.median if isinstance(outcome, Scored) else None
    detail = "\n".join(explain(outcome, source=node.candidate.source))
    return Feedback(candidate=node.candidate, outcome=outcome_kind(outcome), detail=detail, speedup=speedup)


def history(nodes: Sequence[Node]) -> tuple[Feedback, ...]:
    """Feedback of all nodes, oldest first, without candidates that still deserve another try at the judge."""
    failures = Counter(n.candidate.id for n in nodes if isinstance(n.outcome, WorkerFailure))
    judged = {n.candidate.id for n in nodes if not isinstance(n.outcome, WorkerFailure)}
    return tuple(
        feedback_of(n) for n in nodes if n.candidate.id in judged or failures[n.candidate.id] >= JUDGE_AGAIN
    )  # fmt: skip


def standing(nodes: Iterable[Node]) -> tuple[Node, ...]:
    """The judgement that stands for each candidate: its latest one that is not a failure of the judge's own.

    A candidate that was accepted once and rejected later is therefore rejected.
    """
    latest: dict[str, Node] = {}
    for node in nodes:
        if not isinstance(node.outcome, WorkerFailure):
            latest[node.candidate.id] = node
    return tuple(sorted(latest.values(), key=lambda n: n.number))


def speedup_of(node: Node) -> float | None:
    """Median speed-up over eager of an accepted node whose work is its own, else None."""
    outcome = node.outcome
    if isinstance(outcome, Scored) and outcome.audit.kind is AuditKind.GENERATED:
        return outcome.measurement.speedup.median
    return None


def best_node(nodes: Iterable[Node]) -> Node | None:
    """The first of `ranked_nodes`, or None if there is none."""
    return next(iter(ranked_nodes(nodes)), None)


def ranked_nodes(nodes: Iterable[Node]) -> tuple[Node, ...]:
    """The accepted nodes, the fastest first.

    Only standing nodes count (see `standing`), and only those audited as generated. Nodes whose whole interval is above
    1.0 come before those that may be no faster than eager; among equals the highest median wins, then the older.
    """
    keyed = []
    for node in standing(nodes):
        speedup = speedup_of(node)
        if speedup is not None:
            assert isinstance(node.outcome, Scored)
            keyed.append(((node.outcome.measurement.speedup.low > 1.0, speedup), node))
    return tuple(node for _, node in sorted(keyed, key=lambda pair: pair[0], reverse=True))


def parent_node(candidate_parent: str, nodes: Sequence[Node]) -> str:
    """Id of the newest node of the candidate that was revised, or "" for a start from scratch."""
    return next((n.id for n in reversed(nodes) if n.candidate.id == candidate_parent), "") if candidate_parent else ""


def weights(record: VariantRecord) -> tuple[tuple[Mapping[str, int], float], ...]:
    """Observed sizes with their share of the variant's eager time, most important first; shares sum to 1.

    Points that differ only in a scalar are one. Without any measured time, calls decide.
    """
    timed = any(p.eager_us > 0 for p in record.points)
    totals: dict[tuple[tuple[str, int], ...], float] = {}
    for point in record.points:
        key = tuple(sorted(point.dims.items()))
        totals[key] = totals.get(key, 0.0) + point.calls * (point.eager_us if timed else 1.0)
    whole = sum(totals.values())
    if whole <= 0:
        return ()
    ranked = sorted(totals.items(), key=lambda item: (-item[1], item[0]))
    return tuple((dict(key), total / whole) for key, total in ranked)
