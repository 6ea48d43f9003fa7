"""What a project keeps, as it is stored. Owns `StoredDecision`, `StoredTrial`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields

from kernelforge.digest import Json
from kernelforge.store.serial import checked_text, read_number


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
        artifact: sha256 of the binary of an accepted candidate, else "". Also "" if it does not come along, which
            only somebody who adds trials by hand may do: there is nothing to export then.
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
    def from_json(data: Json) -> StoredTrial:
        """Raises ValueError if it is none; what the fields say is for `store.checks`."""
        if not isinstance(data, Mapping) or data.keys() != {field.name for field in fields(StoredTrial)}:
            raise ValueError("a trial does not have the fields of one")
        number = data["number"]
        if isinstance(number, bool) or not isinstance(number, int):
            raise ValueError("field 'number' is not an integer")
        texts = {n: checked_text(v, n) for n, v in data.items() if n not in {"number", "started", "seconds"}}
        return StoredTrial(
            id=texts["id"], variant_id=texts["variant_id"], number=number, parent=texts["parent"],
            candidate=texts["candidate"], source=texts["source"], kind=texts["kind"], outcome=texts["outcome"],
            started=read_number(data["started"], "started"), seconds=read_number(data["seconds"], "seconds"),
            artifact=texts["artifact"],
        )  # fmt: skip
