"""Revision trees. Owns `Node`, `NodeStore`, `Judge`, `Strategy`, `Selection`, `Budget`, `SearchSummary`.

Search sees no SQL: the store implements `NodeStore`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias

from kernelforge.build.types import Artifact, BuildFailure
from kernelforge.cards.types import OperatorCard, VariantRecord
from kernelforge.evaluate.types import Outcome, Trial
from kernelforge.generate.types import Candidate

if TYPE_CHECKING:
    from kernelforge.cards.examples import ExampleStore
    from kernelforge.search.tree import TreeView

StopReason: TypeAlias = Literal["trials", "seconds", "stopped", "exhausted"]
"""Why a search ended: a budget was spent, `should_stop` said so, or every variant is exhausted or parked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A judged candidate in the revision tree of a variant.

    Attributes:
        id: the node's own id: digest of candidate id and trial start, so a re-judged candidate is a new node.
        parent: node id of the revised candidate, or "".
        number: 1, 2, ... in the order of the variant's trials; what people type.
    """

    id: str
    number: int
    variant_id: str
    parent: str
    candidate: Candidate
    outcome: Outcome
    started: float
    seconds: float


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
    """

    trials: int | None = None
    seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchSummary:
    """What one call of the search did.

    Attributes:
        trials: how many were judged and stored. seconds: wall time.
        stopped: why it ended.
        best: best node per variant id, over the whole history; a variant without an accepted node is absent.
        parked: variant id -> why no more trials were given to it.
    """

    trials: int
    seconds: float
    stopped: StopReason
    best: Mapping[str, Node]
    parked: Mapping[str, str]
