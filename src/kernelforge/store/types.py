"""What a project keeps beside cards and nodes. Owns `StoredDecision`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredDecision:
    """What an export decided on a variant.

    Attributes:
        text: as in `report.rows.OperatorRow.decision`.
        node: id of the node that it was taken for; it says nothing about another one.
        recorded: POSIX seconds.
    """

    text: str
    node: str
    recorded: float
