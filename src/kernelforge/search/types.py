"""Revision trees. Owns `Node`, `NodeStore`, `Judge`, `Strategy`, `Selection`, `Budget`, `SearchSummary`.

Search sees no SQL: the store implements `NodeStore`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias, assert_never

from kernelforge.audit.types import AuditKind
from kernelforge.build.types import Artifact, BuildFailure
from kernelforge.cards.types import OperatorCard, VariantRecord
from kernelforge.evaluate.types import Outcome, Scored, Trial, WorkerFailure
from kernelforge.generate.types import Candidate
from kernelforge.search.lanes import Lane
from kernelforge.verify.types import Rejected

if TYPE_CHECKING:
    from kernelforge.cards.examples import ExampleStore
    from kernelforge.search.tree import TreeView

StopReason: TypeAlias = Literal["trials", "seconds", "tokens", "usd", "stopped", "exhausted"]
"""Why a search ended: a budget was spent, `should_stop` said so, or every variant is exhausted or parked."""


OutcomeKind: TypeAlias = Literal["accepted", "rejected", "build_failure", "worker_failure"]


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """What the search asks of a node at every step, so that a large tree is read without its sources and samples.

    Attributes:
        candidate_id: of its candidate. kind: of its outcome.
        speedup, low: median over eager and the lower end of its interval; None unless the node was accepted and does
            its work itself.
        candidate_us, eager_us, floor_us: as in the measurement; None unless the node was accepted.
        binary: sha256 of what was built and accepted, else "".
        repairs: id of the failed candidate that it is the repair of, or "": one proposal, however many attempts.
    """

    candidate_id: str
    kind: OutcomeKind
    speedup: float | None = None
    low: float | None = None
    candidate_us: float | None = None
    eager_us: float | None = None
    floor_us: float | None = None
    binary: str = ""
    repairs: str = ""


def summarise(candidate: Candidate, outcome: Outcome) -> Summary:
    """The summary of a judged candidate."""
    if not isinstance(outcome, Scored):
        return Summary(candidate_id=candidate.id, kind=outcome_kind(outcome), repairs=candidate.repairs)
    measurement = outcome.measurement
    generated = outcome.audit.kind is AuditKind.GENERATED
    return Summary(
        candidate_id=candidate.id, kind="accepted",
        speedup=measurement.speedup.median if generated else None, low=measurement.speedup.low if generated else None,
        candidate_us=measurement.candidate_us, eager_us=measurement.eager_us, floor_us=measurement.floor_us,
        binary=outcome.artifact.digest, repairs=candidate.repairs,
    )  # fmt: skip


class Contents(Protocol):
    """Candidate and outcome of a node; a store may read them only when they are asked for."""

    @property
    def candidate(self) -> Candidate: ...

    @property
    def outcome(self) -> Outcome: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """Contents in memory."""

    candidate: Candidate
    outcome: Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A judged candidate in the revision tree of a variant. Made by `node_of`, or by a store.

    Attributes:
        id: the node's own id: digest of candidate id and trial start, so a re-judged candidate is a new node.
        parent: node id of the revised candidate, or "".
        number: 1, 2, ... in the order of the variant's trials; what people type.
    """

    id: str
    number: int
    variant_id: str
    parent: str
    started: float
    seconds: float
    summary: Summary
    contents: Contents = field(repr=False, compare=False)

    @property
    def candidate(self) -> Candidate:
        return self.contents.candidate

    @property
    def outcome(self) -> Outcome:
        return self.contents.outcome

    @property
    def candidate_id(self) -> str:
        return self.summary.candidate_id

    @property
    def kind(self) -> OutcomeKind:
        return self.summary.kind


def node_of(*, id: str, number: int, parent: str, trial: Trial) -> Node:
    """A node with its contents in memory."""
    return Node(
        id=id, number=number, variant_id=trial.candidate.variant_id, parent=parent, started=trial.started,
        seconds=trial.seconds, summary=summarise(trial.candidate, trial.outcome),
        contents=Judged(candidate=trial.candidate, outcome=trial.outcome),
    )  # fmt: skip


class NodeStore(Protocol):
    """Where trials live. Safe for several threads and processes; finished trials never change."""

    @property
    def examples(self) -> ExampleStore:
        """The captured tensors."""
        ...

    def append(self, trial: Trial, *, parent: str = "") -> Node:
        """Store a finished trial; returns it as a node. The same trial appended again is the same node.

        Raises:
            NotFound: `parent` is not a node of the same variant.
        """
        ...

    def nodes(self, variant_id: str, *, after: int = 0) -> Sequence[Node]:
        """Nodes of a variant with a number above `after`, oldest first."""
        ...

    def cards(self) -> Sequence[OperatorCard]:
        """The project's cards, largest share first."""
        ...

    def record(self, prefix: str) -> VariantRecord:
        """The variant record whose id starts with `prefix` (or whose label is `prefix`).

        Raises:
            NotFound: none, or more than one.
        """
        ...


class Judge(Protocol):
    """Builds, verifies, measures and audits one candidate at a time. Not thread-safe."""

    def evaluate(
        self,
        candidate: Candidate,
        record: VariantRecord,
        examples: ExampleStore,
        *,
        built: Artifact | BuildFailure | None = None,
    ) -> Trial:
        """Judge a candidate of `record.variant`, building it first unless it comes `built`. A bad one never raises."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """What the next proposal starts from.

    Attributes:
        parent: id of the node to revise, or "" for a start from scratch.
        reason: why, in a few words.
    """

    parent: str
    reason: str


class Strategy(Protocol):
    """Picks the node to revise. Thread-safe; a pure function of the view."""

    name: str

    def select(self, view: TreeView) -> Selection:
        """The start of the next proposal: a valid node of the view, or ""."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """Of one call of the search. Whichever comes first ends it; None means no limit.

    Attributes:
        trials: over all variants together. seconds: wall time; no trial starts that would likely end after it.
        tokens: read and written by language models. usd: what they cost, US dollars. No proposal is asked for that
            would likely exceed them; what was paid for is judged.
    """

    trials: int | None = None
    seconds: float | None = None
    tokens: int | None = None
    usd: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchSummary:
    """What one call of the search did.

    Attributes:
        trials: how many were judged and stored. seconds: wall time, without pauses.
        tokens, usd: what the proposals cost; None if the generator does not say it of every one.
        stopped: why it ended.
        best: best node per variant id, over the whole history; a variant without an accepted node is absent.
        parked: variant id -> why no more trials were given to it.
        busy_s: seconds in which each lane was at work (`search.lanes`).
    """

    trials: int
    seconds: float
    stopped: StopReason
    best: Mapping[str, Node]
    parked: Mapping[str, str]
    tokens: int | None = 0
    usd: float | None = 0.0
    busy_s: Mapping[Lane, float] = field(default_factory=dict)
