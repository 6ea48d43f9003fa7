"""Judges kernels that were delivered for orders: built, claimed, judged and stored, one after the other.

What `kforge tell` and `kforge add` share: each makes orders of its own kernels, and says of each what came of it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from kernelforge.build.types import Artifact, BuildFailure
from kernelforge.cards.types import VariantRecord
from kernelforge.errors import NotFound, UsageError
from kernelforge.evaluate.types import Scored
from kernelforge.explain.outcome import explain
from kernelforge.generate.source import LARGEST_SOURCE, TOO_LARGE, source_problem
from kernelforge.generate.types import Candidate
from kernelforge.report.asking import ToldRow
from kernelforge.report.nodes import trial_row
from kernelforge.search.orders import Order
from kernelforge.search.study import Study, Track
from kernelforge.search.trials import judged
from kernelforge.search.types import Node
from kernelforge.store.project import Project
from kernelforge.workshop import SPARE_CORES, Workshop

ELSEWHERE = "another process judges it"


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivered:
    """A kernel that was delivered for an order. path: the order's folder, or the kernel's file, if it has one."""

    order: Order
    track: Track
    candidate: Candidate
    path: Path = Path()


@dataclass(frozen=True, slots=True, kw_only=True)
class Built:
    """What came of building one. started: POSIX seconds. seconds: wall time."""

    result: Artifact | BuildFailure
    started: float
    seconds: float


def judge_all(
    workshop: Workshop, project: Project, study: Study, items: Sequence[Delivered], should_stop: Callable[[], bool]
) -> Iterator[tuple[Delivered, Node | None]]:
    """Judge one after the other; on CUDA all are built ahead, on the CPU nothing runs beside a timing.

    Yields:
        Each with its stored trial, None if another process judges it; fewer once `should_stop` says so.
    """
    ahead = workshop.backend.name == "cuda"
    threads = max(1, (os.cpu_count() or 1) - SPARE_CORES) if ahead else 1
    with ThreadPoolExecutor(threads, thread_name_prefix="kforge-build") as pool:
        builds = [pool.submit(build_delivered, workshop, item) for item in items] if ahead else []
        try:
            for index, item in enumerate(items):
                if should_stop():
                    return
                built = builds[index].result() if ahead else build_delivered(workshop, item)
                yield item, judge_built(workshop, project, study, item, built)
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def build_delivered(workshop: Workshop, item: Delivered) -> Built:
    """Build one. Thread-safe."""
    started, clock = time.time(), time.monotonic()
    result = workshop.backend.build(item.candidate, item.track.record.variant)
    return Built(result=result, started=started, seconds=time.monotonic() - clock)


def judge_built(workshop: Workshop, project: Project, study: Study, item: Delivered, built: Built) -> Node | None:
    """The stored trial of a kernel; None if it is another process's to judge."""
    order = study.claim(item.order.id)
    if order is None:
        return node_of_order(project, study, item)
    try:
        trial = judged(
            item.candidate, built.result, started=built.started, seconds=built.seconds, record=item.track.record,
            nodes=item.track.nodes, examples=project.examples, judge=workshop.judge,
        )  # fmt: skip
    except BaseException:
        study.release(order)  # this process may live on, and nobody else would get it
        raise
    return study.record(order, trial)


def node_of_order(project: Project, study: Study, item: Delivered) -> Node | None:
    """The trial of an order that is done, else None."""
    node = project.order(item.order.id).node
    study.refresh()
    return next((n for n in item.track.nodes if n.id == node), None)


def source_of(file: Path) -> tuple[str, str]:
    """The text of a kernel, and why there is none, as the end of a sentence."""
    try:
        if not file.is_file():
            return "", "is no file" if file.exists() else "does not exist"
        # Before it is read.
        if file.stat().st_size > LARGEST_SOURCE:
            return "", TOO_LARGE
        text = file.read_text()
    except (OSError, ValueError) as error:
        return "", f"cannot be read: {getattr(error, 'strerror', None) or 'it is no text'}"
    problem = source_problem(text)
    return (text, "") if not problem else ("", problem)


def read_source(file: Path, project: Project, record: VariantRecord) -> str:
    """The text of a file that is to be a candidate.

    Raises:
        NotFound: there is none. UsageError: it is for another device than the project's.
    """
    source, problem = source_of(file)
    if problem:
        raise NotFound(f"{file} {problem}", hint="name a .cpp or .cu file")
    if for_other_device(file, project):
        raise UsageError(
            f"{file} is CUDA, and {record.variant.label} was captured on the CPU",
            hint="write C++ for it, or capture the model with --device cuda",
        )
    return source


def for_other_device(file: Path, project: Project) -> bool:
    """Whether a file is none for the project's device, by its name."""
    return project.device == "cpu" and file.suffix == ".cu"


def row_of(path: Path, record: VariantRecord, node: Node | None, *, why: str = "") -> ToldRow:
    """What came of a kernel. why: no trial was made."""
    label = record.variant.label
    if node is None:
        return ToldRow(path=str(path), label=label, why=why or ELSEWHERE)
    row, scored = trial_row(node), node.outcome if isinstance(node.outcome, Scored) else None
    lines = explain(node.outcome, source=node.candidate.source, record=record)
    return ToldRow(
        path=str(path), label=label, number=node.number, outcome=node.kind, reason=row.reason, speedup=row.speedup,
        candidate_us=row.candidate_us, floor_us=None if scored is None else scored.measurement.floor_us,
        audit="" if scored is None else str(scored.audit.kind), first=_first(lines, accepted=scored is not None),
        why=why,
    )  # fmt: skip


def _first(explanation: Sequence[str], *, accepted: bool) -> str:
    """The line that says most: why it failed, or what likely limits it."""
    limits = [line for line in explanation if line.startswith("likely limiter")] if accepted else []
    return next(iter(limits or explanation), "")
