"""What a variant's stored nodes say: which judgement of a candidate stands, the best node, and the generator's history.

Pure functions of the nodes, so that a resumed search and an uninterrupted one see the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from kernelforge.benchmark.clock import was_disturbed
from kernelforge.build.types import BuildFailure
from kernelforge.cards.types import VariantRecord
from kernelforge.evaluate.types import Scored
from kernelforge.explain.outcome import explain
from kernelforge.explain.profile import Profile
from kernelforge.generate.types import Feedback
from kernelforge.search.types import Node
from kernelforge.verify.types import Rejected

MIN_SPEEDUP_LOW = 1.02
"""Faster than eager beyond the noise is what has the low end of its interval above this: only that is exported."""

JUDGE_AGAIN = 2
"""A candidate that the judge could not judge is offered to it this often in all, then counts as tried."""
DOUBTFUL = 0.5
"""A kernel that is slower than this while others use the machine is offered to the judge again, as if it had failed."""


def feedback_of(node: Node, record: VariantRecord | None = None, profile: Profile | None = None) -> Feedback:
    """A node as the generator sees it; with the variant's record its explanation knows bytes and sizes too.

    Args:
        profile: what a profiler measured of its binary; the explanation ends with what follows from it.
    """
    outcome = node.outcome
    measured = outcome.measurement if isinstance(outcome, Scored) else None
    detail = "\n".join(explain(outcome, source=node.candidate.source, record=record, profile=profile))
    return Feedback(
        candidate=node.candidate, outcome=node.kind, detail=detail, number=node.number,
        speedup=None if measured is None else measured.speedup.median,
        us=None if measured is None else measured.candidate_us,
        device="" if measured is None else measured.environment.get("device", ""),
        disturbed=measured is not None and was_disturbed(measured),
        reason=str(outcome.reason) if isinstance(outcome, BuildFailure | Rejected) else "",
    )  # fmt: skip


def attempts_at(node: Node, nodes: Sequence[Node]) -> tuple[Node, ...]:
    """A node and the failed attempts before it at the same proposal, oldest first."""
    by_candidate = {n.candidate_id: n for n in nodes}
    chain = [node]
    # A candidate may come back as the repair of its own repair.
    while (before := by_candidate.get(chain[0].summary.repairs)) is not None and before not in chain:
        chain.insert(0, before)
    return tuple(chain)


def last_attempt(node: Node, nodes: Sequence[Node]) -> Node:
    """The newest attempt at the proposal of a node, which may be itself."""
    mended = {n.summary.repairs: n for n in nodes if n.summary.repairs}
    seen = {node.id}
    while (after := mended.get(node.candidate_id)) is not None and after.id not in seen:
        node = after
        seen.add(node.id)
    return node


def history(nodes: Sequence[Node]) -> tuple[Feedback, ...]:
    """Feedback of all nodes, oldest first, without candidates that still deserve another try at the judge."""
    return tuple(feedback_of(n) for n in told(nodes))


def told(nodes: Sequence[Node]) -> tuple[Node, ...]:
    """The nodes of `history`."""
    doubtful = {n.id for n in nodes if _is_doubtful(n)}
    tries = Counter(n.candidate_id for n in nodes if n.id in doubtful)
    sure = {n.candidate_id for n in nodes if n.id not in doubtful}
    return tuple(n for n in nodes if n.candidate_id in sure or tries[n.candidate_id] >= JUDGE_AGAIN)


def _is_doubtful(node: Node) -> bool:
    """The judge failed; or a kernel looks very slow in a measurement that others disturbed."""
    if node.kind != "accepted":
        return node.kind == "worker_failure"
    speedup = node.summary.speedup
    # Only of such a one the whole outcome is read.
    if speedup is None or speedup >= DOUBTFUL:
        return False
    outcome = node.outcome
    return isinstance(outcome, Scored) and was_disturbed(outcome.measurement)


class Standing:
    """The judgement that stands for each candidate: its latest one that is not a failure of the judge's own.

    A candidate that was accepted once and rejected later is therefore rejected. Later is by the clock of the trials,
    not by the order in which they came here: copies of a project are merged in both directions.
    """

    def __init__(self, nodes: Iterable[Node] = ()) -> None:
        self._latest: dict[str, Node] = {}
        self._best: Node | None = None
        for node in nodes:
            self.add(node)

    def add(self, node: Node) -> None:
        """Take in the next node."""
        summary = node.summary
        if summary.kind == "worker_failure":
            return
        replaced = self._latest.get(summary.candidate_id)
        if replaced is not None and replaced.started > node.started:
            return
        self._latest[summary.candidate_id] = node
        if replaced is not None and replaced is self._best:
            self._best = max(
                (n for n in self._latest.values() if n.summary.speedup is not None), key=_rank, default=None
            )
        elif summary.speedup is not None and (self._best is None or _rank(node) > _rank(self._best)):
            self._best = node

    @property
    def nodes(self) -> tuple[Node, ...]:
        """Oldest first."""
        return tuple(sorted(self._latest.values(), key=lambda n: n.number))

    @property
    def best(self) -> Node | None:
        """The first of `ranked_nodes`."""
        return self._best

    @property
    def newest_timed(self) -> Node | None:
        """The newest accepted one, whoever does its work."""
        return max((n for n in self._latest.values() if n.kind == "accepted"), key=lambda n: n.number, default=None)


def standing(nodes: Iterable[Node]) -> tuple[Node, ...]:
    """The judgement that stands for each candidate, oldest first; see `Standing`."""
    return Standing(nodes).nodes


def speedup_of(node: Node) -> float | None:
    """Median speed-up over eager of an accepted node whose work is its own, else None."""
    return node.summary.speedup


def best_node(nodes: Iterable[Node]) -> Node | None:
    """The first of `ranked_nodes`, or None if there is none."""
    return Standing(nodes).best


def ranked_nodes(nodes: Iterable[Node]) -> tuple[Node, ...]:
    """The accepted nodes, the fastest first.

    Only standing nodes count (see `standing`), and only those audited as generated. Nodes that are faster than
    eager beyond the noise come before the others; among equals the highest median wins, then the older.
    """
    return tuple(sorted((n for n in standing(nodes) if n.summary.speedup is not None), key=_rank, reverse=True))


def _rank(node: Node) -> tuple[bool, float, float]:
    speedup, low = node.summary.speedup, node.summary.low
    assert speedup is not None and low is not None
    return low > MIN_SPEEDUP_LOW, speedup, -node.started


def parent_node(candidate_parent: str, nodes: Sequence[Node]) -> str:
    """Id of the newest node of the candidate that was revised, or "" for a start from scratch."""
    return next((n.id for n in reversed(nodes) if n.candidate_id == candidate_parent), "") if candidate_parent else ""


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
