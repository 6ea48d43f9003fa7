"""Judges the kernels that were written for work orders: those in folders, in one go, or one text.

A kernel that was changed since its verdict is judged again, as one more attempt at the same order.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TypeAlias

from kernelforge.asking import FORMAT, GENERATOR, ORDER
from kernelforge.cards.types import VariantRecord
from kernelforge.delivering import (
    ELSEWHERE,
    Delivered,
    build_delivered,
    judge_all,
    judge_built,
    node_of_order,
    row_of,
    source_of,
)
from kernelforge.digest import Json
from kernelforge.errors import NotFound, ProjectError, Stopped, UsageError
from kernelforge.generate.prompt import FILE_OF
from kernelforge.generate.source import MOST_NOTES, first_comment, source_problem
from kernelforge.generate.types import Candidate
from kernelforge.profiling import NotProfiled, profile_node
from kernelforge.report.asking import TellReport, ToldRow, VerdictReport
from kernelforge.report.evaluation import eval_report
from kernelforge.search.duplicates import normalised
from kernelforge.search.orders import Order
from kernelforge.search.strategies import get_strategy
from kernelforge.search.study import Study, Track
from kernelforge.search.types import Node
from kernelforge.search.winners import find_node
from kernelforge.settings import Settings
from kernelforge.store.blobs import write_atomically
from kernelforge.store.project import Project
from kernelforge.workshop import BACKEND_OF, Workshop, open_workshop

VERDICT, VERDICT_TEXT = "verdict.json", "VERDICT.md"
BUILDING = "building"

Opener: TypeAlias = Callable[[str, Settings], AbstractContextManager[Workshop]]
"""Opens the workshop of a device, as `workshop.open_workshop` does."""


def tell_orders(
    project: Project,
    folders: Sequence[Path],
    *,
    model: str = "",
    profile: bool = False,
    on_event: Callable[[str], None],
    should_stop: Callable[[], bool],
    settings: Settings,
) -> TellReport:
    """Judge the kernels in folders of orders, or in folders of such folders, and write the verdicts beside them.

    What was judged before is left alone unless it has changed. Each verdict is stored and written as soon as it is
    there.

    Args:
        model: who wrote them, for the record. should_stop: asked between two kernels.
        profile: measure the accepted ones with the GPU's profiler, and put what follows from it into the verdict.

    Raises:
        NotFound: no order is there. EnvironmentMissing: no compiler, or no GPU.
    """
    places = [place for folder in folders for place in _order_folders(folder)]
    if not places:
        raise NotFound(
            f"no work order in {', '.join(map(str, folders))}",
            hint="make some: kforge ask -o FOLDER, then write kernels",
        )
    records = {r.variant.id: r for card in project.cards() for r in card.variants}
    documents = {place: _document(place) for place in places}
    used = {str(d["variant"]) for d in documents.values()}
    study = Study(project, [records[v] for v in used if v in records], strategy=get_strategy("best-first"))
    rows: list[ToldRow] = []
    told: list[Delivered] = []
    for place, document in documents.items():
        found = _told(project, study, place, document, model, but=[item.order.id for item in told])
        if isinstance(found, Delivered):
            told.append(found)
        else:
            rows.append(found)
    if told and not should_stop():
        with open_workshop(project.device, settings) as workshop:
            for number, (item, node) in enumerate(judge_all(workshop, project, study, told, should_stop), 1):
                if profile and node is not None:
                    _profile(project, item, node, on_event, settings)
                row = (
                    row_of(item.path, item.track.record, None) if node is None else _write_verdict(project, item, node)
                )
                on_event(f"[{number}/{len(told)}]  {row.line}")
                rows.append(row)
    judged_here = {row.path for row in rows}
    return TellReport(rows=tuple(rows), left=sum(str(item.path) not in judged_here for item in told))


def _order_folders(folder: Path) -> Iterator[Path]:
    if (folder / ORDER).is_file():
        yield folder
        return
    if not folder.is_dir():
        raise NotFound(f"{folder} is no folder", hint="name the folder that `kforge ask -o` wrote")
    yield from sorted(path.parent for path in folder.glob(f"*/{ORDER}"))


def _document(place: Path) -> dict[str, Json]:
    try:
        document = json.loads((place / ORDER).read_bytes())
        if document["format"] != FORMAT or not all(isinstance(document[k], str) for k in ("order", "variant", "write")):
            raise ValueError("it is no work order")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ProjectError(f"{place / ORDER} cannot be read: {error}", hint="ask for a new order") from error
    return dict(document)


def judge_source(
    project: Project,
    order_id: str,
    source: str,
    *,
    notes: str = "",
    model: str = "",
    opener: Opener = open_workshop,
    on_event: Callable[[str], None],
    should_stop: Callable[[], bool],
    settings: Settings,
) -> VerdictReport:
    """Judge one text as the kernel of an order, and store the trial.

    An order that has its verdict takes another text as one more attempt; the same text has the same verdict, and one
    that waits for its verdict, of whichever attempt, is judged now.

    Args:
        notes: what is new in it, by default its first line if that is a comment. model: who wrote it.
        opener: of the workshop. should_stop: asked between building and judging.

    Raises:
        NotFound: no such order. UsageError: the source is none, or this variant's trials have it already.
        EnvironmentMissing: no compiler, or no GPU. Stopped: the order keeps the kernel, and it may be told again.
    """
    known = project.order(order_id)
    if problem := source_problem(source):
        raise UsageError(f"the source {problem}", hint="give the text of one file that defines launch")
    record = project.record(known.variant_id)
    study = Study(project, [record], strategy=get_strategy("best-first"))
    track = study.tracks[known.variant_id]
    parent = next((n for n in track.nodes if n.id == known.parent), None)
    candidate = _candidate(project, source, parent, variant_id=known.variant_id, notes=notes, model=model)
    order = _deliver(project, study, known, candidate)
    if order.state == "failed":
        raise UsageError(f"not judged: {order.detail}", hint=_where_known(track, source))
    told = Delivered(order=order, track=track, candidate=order.candidate or candidate)
    node = node_of_order(project, study, told) if order.state == "done" else None
    if node is None:
        with opener(project.device, settings) as workshop:
            on_event(BUILDING)
            built = build_delivered(workshop, told)
            if should_stop():
                raise Stopped("stopped before it was judged", hint="submit it again")
            node = judge_built(workshop, project, study, told, built)
    if node is None:
        return _without_verdict(project.order(order.id), record, project.device)
    return _verdict_report(project, node, record, order=order.id)


def order_verdict(project: Project, *, order: str, variant: str, trial: str) -> VerdictReport:
    """The verdict on what was delivered for an order, or that on a trial.

    Args:
        order: its id, or a unique prefix of it; or else `variant` with `trial`, as of `kforge op show`.

    Raises:
        NotFound: no such order, variant or trial. UsageError: neither is named, or both.
    """
    if bool(order) == bool(variant and trial) or (order and (variant or trial)):
        raise UsageError("name either an order, or a variant and its trial", hint="tree lists the trials")
    if order:
        found = project.order(order)
        record = project.record(found.variant_id)
        node = next((n for n in project.nodes(found.variant_id) if found.node and n.id == found.node), None)
        if node is None:
            return _without_verdict(found, record, project.device)
        return _verdict_report(project, node, record, order=found.id)
    record = project.record(variant)
    return _verdict_report(project, find_node(record, project.nodes(record.variant.id), trial), record)


def _deliver(
    project: Project, study: Study, known: Order, candidate: Candidate, *, but: Collection[str] = ()
) -> Order:  # fmt: skip
    """An order with the candidate: what `Study.tell` says, or another one with the same text that has no verdict yet.

    The second attempt at an order has an order of its own. Whoever was stopped before it was judged knows only the
    first one's, and delivers the text to that again.

    Args:
        but: ids of orders whose verdicts others wait for: to them the text is known.
    """
    # To an order without a candidate it must be told in any case, so that this order has its end.
    waiting = _unjudged(project, candidate, but) if known.candidate is not None else None
    if waiting is None:
        told = study.tell(known.id, candidate)
        if told.state != "failed":
            return told
        waiting = _unjudged(project, candidate, but)
    return waiting or told


def _unjudged(project: Project, candidate: Candidate, but: Collection[str]) -> Order | None:
    """The order with a candidate's text that has no verdict yet."""
    text = normalised(candidate.source)
    for order in project.orders():
        held = order.candidate if order.state in ("delivered", "judging") and order.id not in but else None
        if held is not None and held.variant_id == candidate.variant_id and normalised(held.source) == text:
            return order
    return None


def _told(
    project: Project, study: Study, place: Path, document: Mapping[str, Json], model: str, *, but: Collection[str]
) -> Delivered | ToldRow:  # fmt: skip
    """The kernel in a folder, delivered; or the row of a folder in which there is nothing to judge.

    Args:
        but: ids of orders that were delivered for other folders just now.
    """
    label = str(document.get("label", ""))
    variant_id = str(document["variant"])
    if variant_id not in study.tracks:
        return ToldRow(path=str(place), label=label, why="its variant is none of this project")
    track = study.tracks[variant_id]
    file = place / str(document["write"])
    source, problem = source_of(file)
    if problem:
        why = f"{file.name} {problem}" if file.is_file() else f"no {file.name} yet"
        return ToldRow(path=str(place), label=label, why=why)
    parent = next((n for n in track.nodes if n.id == document.get("parent")), None)
    candidate = _candidate(project, source, parent, variant_id=variant_id, model=model)
    known = _known_verdict(place, candidate)
    if known:
        return ToldRow(path=str(place), label=label, why=known)
    try:
        order = _deliver(project, study, project.order(str(document["order"])), candidate, but=but)
        if order.state == "failed":
            return ToldRow(path=str(place), label=label, why=order.detail)
    except NotFound:
        # Asked of another copy of the project, or long ago.
        order = _unjudged(project, candidate, but) or study.enqueue(
            candidate, parent="" if parent is None else parent.id, reason=str(document.get("reason", ""))
        )
    return Delivered(path=place, order=order, track=track, candidate=order.candidate or candidate)


def _candidate(
    project: Project, source: str, parent: Node | None, *, variant_id: str, notes: str = "", model: str
) -> Candidate:  # fmt: skip
    return Candidate(
        variant_id=variant_id, source=source, backend=BACKEND_OF[project.device], generator=GENERATOR, model=model,
        notes=" ".join(notes.split())[:MOST_NOTES] or first_comment(source),
        parent="" if parent is None else parent.candidate_id,
    )  # fmt: skip


def _where_known(track: Track, source: str) -> str:
    """What to do about a text that was proposed before."""
    text = normalised(source)
    number = next((n.number for n in track.nodes if normalised(n.candidate.source) == text), 0)
    return f"it is trial {number} of {track.label}; change it" if number else "change it"


def _known_verdict(place: Path, candidate: Candidate) -> str:
    """What was said of this very text, or ""."""
    try:
        verdict = json.loads((place / VERDICT).read_bytes())
        return f"judged before: {verdict['outcome']}" if verdict["candidate"] == candidate.id else ""
    except (OSError, ValueError, KeyError, TypeError):
        return ""


def _without_verdict(order: Order, record: VariantRecord, device: str) -> VerdictReport:
    why = {
        "waiting": "it waits for someone to ask for it", "asked": "nothing was submitted yet",
        "delivered": "it waits for its verdict", "judging": ELSEWHERE, "failed": order.detail,
    }  # fmt: skip
    candidate = order.candidate
    return VerdictReport(
        label=record.variant.label, variant=record.variant.id, write=FILE_OF[BACKEND_OF[device]], order=order.id,
        state=order.state, why=why.get(order.state, "its trial is not there"),
        source="" if candidate is None else candidate.source, notes="" if candidate is None else candidate.notes,
        model="" if candidate is None else candidate.model,
    )  # fmt: skip


def _verdict_report(project: Project, node: Node, record: VariantRecord, *, order: str = "") -> VerdictReport:
    candidate = node.candidate
    return VerdictReport(
        label=record.variant.label, variant=record.variant.id, write=FILE_OF[candidate.backend], order=order,
        judged=eval_report(node, record, profile=project.profile_of(node)), source=candidate.source,
        notes=candidate.notes, model=candidate.model,
    )  # fmt: skip


def _profile(
    project: Project, item: Delivered, node: Node, on_event: Callable[[str], None], settings: Settings
) -> None:
    """Profile what was accepted; that it could not be done is told, and changes nothing of the verdict."""
    if node.kind != "accepted":
        return
    found = profile_node(project, item.track.record, node, settings=settings)
    if isinstance(found, NotProfiled):
        on_event(f"{item.track.label} #{node.number} is not profiled: {found.text}")


def _write_verdict(project: Project, item: Delivered, node: Node) -> ToldRow:
    verdict = _verdict_report(project, node, item.track.record, order=item.order.id)
    report = verdict.judged
    assert report is not None
    document = {"candidate": node.candidate_id, "order": item.order.id, **report.to_json()}
    write_atomically(item.path / VERDICT, (json.dumps(document, indent=2) + "\n").encode())
    text = f"# {verdict.title}\n\n{verdict.diagnosis}\n\n{verdict.advice} and tell it again.\n"
    write_atomically(item.path / VERDICT_TEXT, text.encode())
    return row_of(item.path, item.track.record, node)
