"""Detached runs: what `supervisor` needs of the other stages to start, work on and follow one."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from kernelforge.cards.types import VariantRecord
from kernelforge.errors import EnvironmentMissing, ForgeError, UsageError
from kernelforge.report.operators import project_rows
from kernelforge.report.rows import ForgeReport
from kernelforge.report.runs import RunRow, run_row
from kernelforge.search.events import Event, TrialFinished
from kernelforge.search.lanes import LANES
from kernelforge.search.types import Node
from kernelforge.store.project import Project
from kernelforge.supervisor.control import command_of, start
from kernelforge.supervisor.feed import Feed
from kernelforge.supervisor.folder import RunFolder
from kernelforge.supervisor.types import Run, RunStatus

FOLLOW_POLL_S = 0.25
Select: TypeAlias = Callable[[Project, Sequence[str]], Sequence[VariantRecord]]

PAST_SHOWN = 10
"""So many trials of before are shown to who begins to follow a run."""


def start_run(project: Project, *, run: Run, devices: str) -> RunFolder:
    """Start a run of a project in the background.

    Args:
        devices: "" for one worker on the project's device, else "all" or indices of GPUs, "0,1": one worker each.

    Raises:
        UsageError: the project is of the CPU, or an index is off. EnvironmentMissing: there is no GPU.
    """
    return start(project.path, replace(run, devices=_devices(project, devices)))


def _devices(project: Project, wanted: str) -> tuple[str, ...]:
    if not wanted:
        return ("",)
    if project.device != "cuda":
        raise UsageError(
            f"{project.path} was captured on the CPU, where timings share one slot", hint="leave --devices out"
        )
    import torch

    from kernelforge.benchmark.slot import physical_gpu

    count = torch.cuda.device_count()
    if not count:
        raise EnvironmentMissing("torch sees no GPU", hint="run `kforge doctor`")
    indices = [str(i) for i in range(count)] if wanted == "all" else wanted.split(",")
    if not all(i.strip().isdigit() and int(i) < count for i in indices) or len(set(indices)) < len(indices):
        raise UsageError(
            f"--devices {wanted} does not name GPUs of this machine", hint=f"all, or of 0 to {count - 1}, as in 0,1"
        )
    return tuple(physical_gpu(int(i)) for i in indices)


@dataclass(frozen=True, slots=True, kw_only=True)
class Followed:
    """A run that was followed. `report` is what it did, None if it has not ended."""

    row: RunRow
    report: ForgeReport | None


def follow_run(
    folder: RunFolder,
    *,
    select: Select,
    on_event: Callable[[Event | str], None],
    on_past: Callable[[Event | str], None],
    should_leave: Callable[[], bool],
) -> Followed:
    """Pass on what happens in a run until it ends.

    Args:
        select: the variant records that names mean.
        on_event: called with each event. on_past: with those of before, but for the last trials.
        should_leave: asked a few times a second; the run goes on.

    Raises:
        ForgeError: the run failed, or died.
    """
    project = Project.open(folder.project)
    status = folder.status()
    feed = Feed([folder.feed(i) for i in range(len(status.workers))], _Nodes(project).find)
    events = feed.poll()
    trials = [i for i, event in enumerate(events) if isinstance(event, TrialFinished)]
    recent = trials[-PAST_SHOWN] if len(trials) >= PAST_SHOWN else 0
    for event in events[:recent]:
        on_past(event)
    events = events[recent:]
    while True:
        for event in events:
            on_event(event)
        status = folder.status()
        # Once more after the end was seen, for what came between.
        events = feed.poll()
        if not status.live and not events:
            break
        if should_leave():
            return Followed(row=run_row(status), report=None)
        if not events:
            time.sleep(FOLLOW_POLL_S)
    row = run_row(status)
    if status.state == "died":
        raise ForgeError(f"run {row.id} died: {row.reason}", hint=f"go on with it: {command_of('resume', folder)}")
    if status.state == "unknown":
        damaged = next(w for w in status.workers if w.error)
        raise ForgeError(f"run {row.id} cannot be told: {damaged.error}", hint=damaged.hint)
    if status.state == "failed":
        failed = next(w for w in status.workers if w.stage == "failed")
        hint = failed.hint or f"go on with it: {command_of('resume', folder)}"
        raise ForgeError(f"run {row.id} failed: {failed.error}", hint=hint)
    return Followed(row=row, report=_report(project, status, select))


def _report(project: Project, status: RunStatus, select: Select) -> ForgeReport:
    workers = status.workers
    tokens, usd = [w.tokens for w in workers], [w.usd for w in workers]
    lanes = [lane for lane in LANES if any(lane in w.busy_s for w in workers)]
    chosen = {r.variant.id for r in select(project, status.run.operators)}
    reasons = sorted({str(w.reason or w.stage) for w in workers})
    return ForgeReport(
        rows=tuple(row for row in project_rows(project) if row.variant in chosen),
        trials=sum(w.trials for w in workers), seconds=max(w.seconds for w in workers),
        stopped=reasons[0] if len(reasons) == 1 else status.state,
        tokens=None if None in tokens else sum(t or 0 for t in tokens),
        usd=None if None in usd else sum(u or 0.0 for u in usd),
        busy_s={lane: sum(w.busy_s.get(lane, 0.0) for w in workers) / len(workers) for lane in lanes},
        measured_s=sum(w.measured_s for w in workers) / len(workers),
    )  # fmt: skip


class _Nodes:
    """The nodes of a project by number; read as they are asked for."""

    def __init__(self, project: Project) -> None:
        self._project = project
        self._known: dict[str, list[Node]] = {}

    def find(self, variant_id: str, number: int) -> Node | None:
        known = self._known.setdefault(variant_id, [])
        if not known or known[-1].number < number:
            known += self._project.nodes(variant_id, after=known[-1].number if known else 0)
        return next((n for n in reversed(known) if n.number == number), None)
