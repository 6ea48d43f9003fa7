"""Revision trees. Owns `Node`, `NodeStore`, `Budget`. Search sees no SQL: the store implements `NodeStore`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from kernelforge.cards.types import OperatorCard, VariantRecord
from kernelforge.evaluate.types import Outcome, Trial
from kernelforge.generate.types import Candidate


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

    def append(self, trial: Trial, *, parent: str = "") -> Node:
        """Store a finished trial; returns it as a node."""
        ...

    def nodes(self, variant_id: str) -> Sequence[Node]:
        """All nodes of a variant, oldest first."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """Whichever comes first ends the search. None means no limit."""

    trials: int | None = None
    seconds: float | None = None
