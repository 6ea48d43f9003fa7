"""Nodes as rows and back. A tree is read as summaries; sources and samples follow in pages when they are asked for."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from threading import Lock
from typing import Any, cast

from sqlalchemy import Engine, select
from sqlalchemy.orm import Session

from kernelforge.digest import canonical_json
from kernelforge.errors import ProjectError
from kernelforge.evaluate.types import Outcome, Scored, Trial
from kernelforge.generate.types import Candidate
from kernelforge.search.types import Judged, Node, OutcomeKind, Summary, outcome_kind, summarise
from kernelforge.store.database import reading
from kernelforge.store.models import NodeRow, SummaryRow
from kernelforge.store.serial import (
    candidate_from_json,
    candidate_to_json,
    outcome_from_json,
    outcome_to_json,
    parse_json,
)
from kernelforge.store.types import StoredTrial

logger = logging.getLogger(__name__)

PAGE = 64
"""Nodes whose contents are read at once: who asks for one mostly asks for its neighbours."""


class Contents:
    """Reads candidates and outcomes of one variant's nodes. Thread-safe."""

    def __init__(self, engine: Engine, variant_id: str, blobs: Path) -> None:
        self._engine = engine
        self._variant_id = variant_id
        self._blobs = blobs
        self._read: dict[int, Judged] = {}
        self._lock = Lock()

    def get(self, number: int) -> Judged:
        """Of the node with that number.

        Raises:
            ProjectError: its row is damaged.
        """
        with self._lock:
            if number not in self._read:
                self._read_page(number)
            return self._read[number]

    def _read_page(self, number: int) -> None:
        first = number - number % PAGE
        query = select(NodeRow).where(
            NodeRow.variant_id == self._variant_id, NodeRow.number >= first, NodeRow.number < first + PAGE
        )
        with reading(self._engine) as session:
            for row in session.scalars(query):
                if row.number == number or row.number not in self._read:
                    self._keep(row, wanted=row.number == number)

    def _keep(self, row: NodeRow, *, wanted: bool) -> None:
        try:
            self._read[row.number] = contents_of(row, self._blobs)
        except ProjectError:
            if wanted:
                raise


class Lazy:
    """The contents of one node."""

    __slots__ = ("_contents", "_number")

    def __init__(self, contents: Contents, number: int) -> None:
        self._contents = contents
        self._number = number

    @property
    def candidate(self) -> Candidate:
        return self._contents.get(self._number).candidate

    @property
    def outcome(self) -> Outcome:
        return self._contents.get(self._number).outcome


def read_nodes(engine: Engine, variant_id: str, blobs: Path, *, after: int) -> tuple[Node, ...]:
    """Nodes with a number above `after`, oldest first; what they hold is read when it is asked for."""
    columns = (
        NodeRow.id, NodeRow.number, NodeRow.parent, NodeRow.started, NodeRow.seconds, NodeRow.kind,
        SummaryRow.candidate_id, SummaryRow.speedup, SummaryRow.low, SummaryRow.candidate_us, SummaryRow.eager_us,
        SummaryRow.floor_us, SummaryRow.repairs, NodeRow.artifact,
    )  # fmt: skip
    query = (
        select(*columns).outerjoin(SummaryRow, SummaryRow.node == NodeRow.id)
        .where(NodeRow.variant_id == variant_id, NodeRow.number > after).order_by(NodeRow.number)
    )  # fmt: skip
    contents = Contents(engine, variant_id, blobs)
    with reading(engine) as session:
        rows = session.execute(query).all()
    return tuple(
        Node(
            id=row.id, number=row.number, variant_id=variant_id, parent=row.parent or "", started=row.started,
            seconds=row.seconds, contents=Lazy(contents, row.number),
            summary=_summary(row, contents),
        )
        for row in rows
    )  # fmt: skip


def _summary(row: Any, contents: Contents) -> Summary:
    if row.candidate_id is None:
        # Stored by an older kernelforge that had the project open while a newer one migrated it; or damaged.
        try:
            judged = contents.get(row.number)
        except ProjectError as error:
            # Nobody's fault and nobody's best, so that the variant's other nodes can be read.
            logger.warning("%s; it counts as not judged", error.message)
            return Summary(candidate_id=row.id, kind="worker_failure")
        return summarise(judged.candidate, judged.outcome)
    return Summary(
        candidate_id=row.candidate_id, kind=cast(OutcomeKind, row.kind), speedup=row.speedup, low=row.low,
        candidate_us=row.candidate_us, eager_us=row.eager_us, floor_us=row.floor_us, binary=row.artifact or "",
        repairs=row.repairs,
    )  # fmt: skip


def add_node(session: Session, row: NodeRow, summary: Summary) -> None:
    """Insert a finished trial with its summary."""
    session.add(row)
    session.flush()  # a parent is there before its child, and a node before what refers to it
    session.add(
        SummaryRow(
            node=row.id, candidate_id=summary.candidate_id, speedup=summary.speedup, low=summary.low,
            candidate_us=summary.candidate_us, eager_us=summary.eager_us, floor_us=summary.floor_us,
            repairs=summary.repairs,
        )
    )  # fmt: skip


def row_of(trial: Trial, *, node_id: str, number: int, parent: str, artifact: str | None) -> NodeRow:
    """The row of a trial that has just ended."""
    candidate = trial.candidate
    return NodeRow(
        id=node_id, variant_id=candidate.variant_id, number=number, parent=parent or None,
        candidate=canonical_json(candidate_to_json(candidate)), source=candidate.source,
        kind=outcome_kind(trial.outcome), outcome=canonical_json(outcome_to_json(trial.outcome)),
        started=trial.started, seconds=trial.seconds, artifact=artifact,
    )  # fmt: skip


def stored_of(row: NodeRow) -> StoredTrial:
    """The trial as it lies in the file."""
    return StoredTrial(
        id=row.id, variant_id=row.variant_id, number=row.number, parent=row.parent or "", candidate=row.candidate,
        source=row.source, kind=row.kind, outcome=row.outcome, started=row.started, seconds=row.seconds,
        artifact=row.artifact or "",
    )  # fmt: skip


def contents_of(row: NodeRow, blobs: Path) -> Judged:
    """Candidate and outcome of a row.

    Raises:
        ProjectError: the row is damaged.
    """
    try:
        outcome = outcome_from_json(parse_json(row.outcome))
        candidate = candidate_from_json(parse_json(row.candidate), row.source)
    except ValueError as error:
        raise ProjectError(
            f"node {row.id[:12]} in nodes.db is damaged: {error}", hint="restore the project from a copy"
        ) from error
    if isinstance(outcome, Scored):
        # Where the project is now, whatever machine made it.
        outcome = replace(outcome, artifact=replace(outcome.artifact, path=blobs / outcome.artifact.digest))
    return Judged(candidate=candidate, outcome=outcome)


def node_of_row(row: NodeRow, blobs: Path) -> Node:
    """The node of a row, with its contents."""
    contents = contents_of(row, blobs)
    return Node(
        id=row.id, number=row.number, variant_id=row.variant_id, parent=row.parent or "", started=row.started,
        seconds=row.seconds, summary=summarise(contents.candidate, contents.outcome), contents=contents,
    )  # fmt: skip
