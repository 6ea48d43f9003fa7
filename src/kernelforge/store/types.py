"""What a project keeps, as it is stored. Owns `StoredDecision`, `StoredTrial`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass

from kernelforge.digest import Json


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


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredTrial:
    """A finished trial as it lies in the database: the fields of `models.NodeRow`, JSON unparsed.

    Attributes:
        artifact: sha256 of the binary of an accepted candidate, else "".
    """

    id: str
    variant_id: str
    number: int
    parent: str
    candidate: str
    source: str
    kind: str
    outcome: str
    started: float
    seconds: float
    artifact: str

    def to_json(self) -> dict[str, Json]:
        return asdict(self)

    @staticmethod
    def from_json(data: Mapping[str, Json]) -> StoredTrial:
        """Raises ValueError or TypeError if it is none."""
        if not isinstance(data["number"], int):
            raise ValueError("number is no integer")
        if not all(isinstance(data[name], int | float) for name in ("started", "seconds")):
            raise ValueError("started or seconds is no number")
        return StoredTrial(**data)  # type: ignore[arg-type]
