"""Puts sources that a person or another program wrote into the revision tree: the verb behind `kforge add`.

Each is an order like those of a search, so that whoever searches at the same time sees it, its text and its binary are
known from then on, and later kernels may revise it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from kernelforge.cards.types import VariantRecord
from kernelforge.delivering import (
    Delivered,
    for_other_device,
    judge_all,
    read_source,
    row_of,
    source_of,
)
from kernelforge.errors import NotFound, UsageError
from kernelforge.generate.source import MOST_NOTES, first_comment
from kernelforge.generate.types import Candidate
from kernelforge.importing import Found, find_kernels, operator_of
from kernelforge.report.asking import TellReport, ToldRow
from kernelforge.search.duplicates import normalised
from kernelforge.search.strategies import get_strategy
from kernelforge.search.study import Study, Track
from kernelforge.search.winners import find_node
from kernelforge.settings import Settings
from kernelforge.store.project import Project
from kernelforge.workshop import BACKEND_OF, open_workshop

GENERATOR = "manual"
BY_HAND = "added by hand"
QUEUED = "put before the next search, which judges it first"
LATER = "it waits for its verdict"


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A source for a variant. parent: node id of what it revises, or ""."""

    path: Path
    record: VariantRecord
    source: str
    notes: str
    parent: str = ""


def add_files(
    project: Project,
    files: Sequence[Path],
    *,
    variant: str,
    parent: str = "",
    notes: str = "",
    judge: bool = True,
    on_event: Callable[[str], None],
    should_stop: Callable[[], bool],
    settings: Settings,
) -> TellReport:
    """Add files as candidates for one variant.

    Args:
        parent: what they revise: a trial's number, or a unique prefix of its node's id; it need not be a valid one.
        notes: what distinguishes them, by default of each its first line, if that is a comment, or its name.
        judge: False only puts them before what the next search judges.

    Raises:
        NotFound: a file, the variant or the parent does not exist. UsageError: no kernels can be made for the variant,
            or a file is none for the project's device. EnvironmentMissing: no compiler, or no GPU.
    """
    record = project.record(variant)
    if record.forgeable:
        raise UsageError(f"no kernel can be made for {record.variant.label}: {record.forgeable}")
    node = find_node(record, project.nodes(record.variant.id), parent).id if parent else ""
    pieces = [
        Piece(path=file, record=record, source=read_source(file, project, record), notes=notes, parent=node)
        for file in files
    ]
    return _add(project, pieces, judge=judge, on_event=on_event, should_stop=should_stop, settings=settings)


def add_folder(
    project: Project,
    folder: Path,
    *,
    judge: bool = True,
    on_event: Callable[[str], None],
    should_stop: Callable[[], bool],
    settings: Settings,
) -> TellReport:
    """Add the kernels of a folder in the original system's layout, each for every variant of its operator.

    Raises:
        NotFound: there are none. EnvironmentMissing: no compiler, or no GPU.
    """
    found = find_kernels(folder)
    if not found:
        raise NotFound(
            f"no kernel of the original system in {folder}",
            hint="name the folder that holds individual_op_kernels/OPERATOR/kernel.cu",
        )
    records: dict[str, list[VariantRecord]] = {}
    for card in project.cards():
        records.setdefault(card.operator, []).extend(card.variants)
    pieces: list[Piece] = []
    rows: list[ToldRow] = []
    for piece in (piece for kernel in found for piece in _pieces(project, kernel, records)):
        if isinstance(piece, Piece):
            pieces.append(piece)
        else:
            rows.append(piece)
    report = _add(project, pieces, judge=judge, on_event=on_event, should_stop=should_stop, settings=settings)
    return TellReport(rows=(*report.rows, *rows), left=report.left)


def _pieces(project: Project, kernel: Found, records: Mapping[str, Sequence[VariantRecord]]) -> list[Piece | ToldRow]:
    """A kernel for each variant of its operator; or the row of what is left out, and why."""
    operator = operator_of(kernel.name)
    source, problem = source_of(kernel.path)
    why = ""
    if not operator:
        why = "no operator is known by that name"
    elif operator not in records:
        why = f"the model does not call {operator}"
    elif for_other_device(kernel.path, project):
        why = "it is CUDA, and the model was captured on the CPU"
    elif problem:
        why = f"it {problem}"
    if why:
        return [ToldRow(path=str(kernel.path), label=operator or kernel.name, why=why)]
    return [
        ToldRow(path=str(kernel.path), label=record.variant.label, why=record.forgeable) if record.forgeable
        else Piece(path=kernel.path, record=record, source=source, notes=f"{kernel.name}/{kernel.path.name}")
        for record in records[operator]
    ]  # fmt: skip


def _add(
    project: Project,
    pieces: Sequence[Piece],
    *,
    judge: bool,
    on_event: Callable[[str], None],
    should_stop: Callable[[], bool],
    settings: Settings,
) -> TellReport:
    """Make orders of what is new, judge them, and say of each piece what came of it, in their order."""
    study = Study(
        project, {p.record.variant.id: p.record for p in pieces}.values(), strategy=get_strategy("best-first")
    )
    rows: dict[int, ToldRow] = {}
    items: dict[int, Delivered] = {}
    first: dict[tuple[str, str], Path] = {}
    done = 0

    def tell(number: int, row: ToldRow) -> None:
        nonlocal done
        done, rows[number] = done + 1, row
        on_event(f"[{done}/{len(pieces)}]  {pieces[number].path}  {row.line}")

    for number, piece in enumerate(pieces):
        key = (piece.record.variant.id, normalised(piece.source))
        twin = first.setdefault(key, piece.path)
        if twin != piece.path:
            tell(number, row_of(piece.path, piece.record, None, why=f"the same text as {twin}"))
            continue
        item = _deliver(project, study, piece)
        if isinstance(item, ToldRow):
            tell(number, item)
        elif judge:
            items[number] = item
        else:
            tell(number, row_of(item.path, item.track.record, None, why=QUEUED))
    if items and not should_stop():
        with open_workshop(project.device, settings) as workshop:
            judged = judge_all(workshop, project, study, list(items.values()), should_stop)
            for number, (item, node) in zip(items, judged, strict=False):
                tell(number, row_of(item.path, item.track.record, node))
    return TellReport(rows=tuple(rows[i] for i in sorted(rows)), left=len(pieces) - len(rows))


def _deliver(project: Project, study: Study, piece: Piece) -> Delivered | ToldRow:
    """The piece as a delivered order; or the row of one whose text is known."""
    track = study.tracks[piece.record.variant.id]
    parent = next((n for n in track.nodes if n.id == piece.parent), None)
    notes = " ".join(piece.notes.split())[:MOST_NOTES] or first_comment(piece.source) or piece.path.name
    candidate = Candidate(
        variant_id=piece.record.variant.id, source=piece.source, backend=BACKEND_OF[project.device],
        generator=GENERATOR, notes=notes, parent="" if parent is None else parent.candidate_id,
    )  # fmt: skip
    if study.is_known(candidate):
        return _known(track, piece)
    order = study.enqueue(candidate, parent=piece.parent, reason=BY_HAND)
    return Delivered(order=order, track=track, candidate=candidate, path=piece.path)


def _known(track: Track, piece: Piece) -> ToldRow:
    """What is known of a text that was judged before, or waits for it."""
    text = normalised(piece.source)
    node = next((n for n in reversed(track.nodes) if normalised(n.candidate.source) == text), None)
    why = f"known: its text is trial {node.number}" if node is not None else LATER
    return row_of(piece.path, piece.record, node, why=why)
