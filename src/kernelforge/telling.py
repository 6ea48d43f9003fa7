"""Judges the kernels that were written into the folders of work orders, in one go. Owns `tell_orders`.

A kernel that was changed since its verdict is judged again, as one more attempt at the same order.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from kernelforge.asking import FORMAT, GENERATOR, ORDER
from kernelforge.build.types import Artifact, BuildFailure
from kernelforge.digest import Json
from kernelforge.errors import NotFound, ProjectError
from kernelforge.generate.prompt import FILE_OF, MOST_NOTES
from kernelforge.generate.types import Candidate
from kernelforge.report.asking import TellReport, ToldRow
from kernelforge.report.evaluation import eval_report
from kernelforge.search.orders import Order
from kernelforge.search.strategies import get_strategy
from kernelforge.search.study import Study, Track
from kernelforge.search.trials import judged
from kernelforge.search.types import Node
from kernelforge.settings import Settings
from kernelforge.store.blobs import write_atomically
from kernelforge.store.project import Project
from kernelforge.workshop import BACKEND_OF, SPARE_CORES, Workshop, open_workshop

VERDICT, VERDICT_TEXT = "verdict.json", "VERDICT.md"
LARGEST_SOURCE = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class _Told:
    """A kernel in an order's folder."""

    path: Path
    order: Order
    track: Track
    candidate: Candidate


@dataclass(frozen=True, slots=True, kw_only=True)
class _Built:
    result: Artifact | BuildFailure
    started: float
    seconds: float


def tell_orders(
    project: Project,
    folders: Sequence[Path],
    *,
    model: str = "",
    on_event: Callable[[str], None],
    should_stop: Callable[[], bool],
    settings: Settings,
) -> TellReport:
    """Judge the kernels in folders of orders, or in folders of such folders, and write the verdicts beside them.

    What was judged before is left alone unless it has changed. Each verdict is stored and written as soon as it is
    there.

    Args:
        model: who wrote them, for the record. should_stop: asked between two kernels.

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
    told: list[_Told] = []
    for place, document in documents.items():
        found = _told(project, study, place, document, model)
        if isinstance(found, _Told):
            told.append(found)
        else:
            rows.append(found)
    if told and not should_stop():
        with open_workshop(project.device, settings) as workshop:
            for number, row in enumerate(_judge_all(workshop, project, study, told, should_stop), 1):
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


def _told(project: Project, study: Study, place: Path, document: Mapping[str, Json], model: str) -> _Told | ToldRow:
    """The kernel in a folder, delivered; or the row of a folder in which there is nothing to judge."""
    label = str(document.get("label", ""))
    variant_id = str(document["variant"])
    if variant_id not in study.tracks:
        return ToldRow(path=str(place), label=label, why="its variant is none of this project")
    track = study.tracks[variant_id]
    source, why = _source(place / str(document["write"]))
    if why:
        return ToldRow(path=str(place), label=label, why=why)
    backend = BACKEND_OF[project.device]
    parent = next((n for n in track.nodes if n.id == document.get("parent")), None)
    candidate = Candidate(
        variant_id=variant_id, source=source, backend=backend, generator=GENERATOR, notes=_notes(source), model=model,
        parent="" if parent is None else parent.candidate_id,
    )  # fmt: skip
    known = _known_verdict(place, candidate)
    if known:
        return ToldRow(path=str(place), label=label, why=known)
    try:
        order = study.tell(str(document["order"]), candidate)
        if order.state == "failed":
            return ToldRow(path=str(place), label=label, why=order.detail)
    except NotFound:
        # Asked of another copy of the project, or long ago.
        order = study.enqueue(
            candidate, parent="" if parent is None else parent.id, reason=str(document.get("reason", ""))
        )
    return _Told(path=place, order=order, track=track, candidate=candidate)


def _source(file: Path) -> tuple[str, str]:
    """The text of a kernel, and why there is none."""
    try:
        if not file.is_file():
            return "", f"no {file.name} yet"
        if file.stat().st_size > LARGEST_SOURCE:
            return "", f"{file.name} is larger than {LARGEST_SOURCE >> 20} MiB"
        text = file.read_text()
    except (OSError, ValueError) as error:
        return "", f"{file.name} cannot be read: {getattr(error, 'strerror', None) or 'it is no text'}"
    if not text.strip():
        return "", f"{file.name} is empty"
    return (text, "") if "\0" not in text else ("", f"{file.name} is no text")


def _notes(source: str) -> str:
    first = source.lstrip().partition("\n")[0].strip()
    return first.removeprefix("//").strip()[:MOST_NOTES] if first.startswith("//") else ""


def _known_verdict(place: Path, candidate: Candidate) -> str:
    """What was said of this very text, or ""."""
    try:
        verdict = json.loads((place / VERDICT).read_bytes())
        return f"judged before: {verdict['outcome']}" if verdict["candidate"] == candidate.id else ""
    except (OSError, ValueError, KeyError, TypeError):
        return ""


def _judge_all(
    workshop: Workshop, project: Project, study: Study, told: Sequence[_Told], should_stop: Callable[[], bool]
) -> Iterator[ToldRow]:
    """Judge one after the other; on CUDA all are built ahead, on the CPU nothing runs beside a timing."""

    def build(item: _Told) -> _Built:
        started, clock = time.time(), time.monotonic()
        result = workshop.backend.build(item.candidate, item.track.record.variant)
        return _Built(result=result, started=started, seconds=time.monotonic() - clock)

    ahead = max(1, (os.cpu_count() or 1) - SPARE_CORES) if workshop.backend.name == "cuda" else 1
    with ThreadPoolExecutor(ahead, thread_name_prefix="kforge-build") as pool:
        builds = [pool.submit(build, item) for item in told] if workshop.backend.name == "cuda" else []
        try:
            for index, item in enumerate(told):
                if should_stop():
                    return
                built = builds[index].result() if builds else build(item)
                node = _judge(workshop, project, study, item, built)
                if node is None:
                    yield ToldRow(path=str(item.path), label=item.track.label, why="another process judges it")
                    continue
                yield _write_verdict(item, node)
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def _judge(workshop: Workshop, project: Project, study: Study, item: _Told, built: _Built) -> Node | None:
    """The stored trial of a kernel; None if it is another process's to judge."""
    if item.order.state == "done":
        study.refresh()
        return next((n for n in item.track.nodes if n.id == item.order.node), None)
    order = study.claim(item.order.id)
    if order is None:
        return None
    trial = judged(
        item.candidate, built.result, started=built.started, seconds=built.seconds, record=item.track.record,
        nodes=item.track.nodes, examples=project.examples, judge=workshop.judge,
    )  # fmt: skip
    return study.record(order, trial)


def _write_verdict(item: _Told, node: Node) -> ToldRow:
    report = eval_report(node, item.track.record)
    document = {"candidate": node.candidate_id, "order": item.order.id, **report.to_json()}
    write_atomically(item.path / VERDICT, (json.dumps(document, indent=2) + "\n").encode())
    accepted, file = node.kind == "accepted", FILE_OF[node.candidate.backend]
    text = [
        f"# {item.track.label}, trial #{node.number}: {node.kind.replace('_', ' ')}", "", *report.explanation, "",
        f"{'To go on from it' if accepted else 'To mend it'}, change {file} and tell it again.",
    ]  # fmt: skip
    write_atomically(item.path / VERDICT_TEXT, ("\n".join(text) + "\n").encode())
    return ToldRow(
        path=str(item.path), label=item.track.label, number=node.number, outcome=node.kind, speedup=report.speedup,
        candidate_us=report.candidate_us, floor_us=report.floor_us, first=_first(report.explanation, accepted=accepted),
    )  # fmt: skip


def _first(explanation: Sequence[str], *, accepted: bool) -> str:
    """The line that says most: why it failed, or what likely limits it."""
    limits = [line for line in explanation if line.startswith("likely limiter")] if accepted else []
    return next(iter(limits or explanation), "")
