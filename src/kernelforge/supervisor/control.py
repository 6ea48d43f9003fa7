"""Starts runs and tells them what to do, from any process. Owns `start`, `pause`, `resume`, `stop`, `cancel`.

Words go through the run's folder: a live worker reads its wish between trials. Only `cancel` reaches for the process.
"""

from __future__ import annotations

import platform
import shlex
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

from kernelforge.errors import ProjectError, UsageError
from kernelforge.executors.detached import kill_family, spawn_detached
from kernelforge.search.orders import Order, abandoned
from kernelforge.search.owners import host_of, is_here, owner_of, pid_of
from kernelforge.store.project import Project
from kernelforge.supervisor.folder import RunFolder
from kernelforge.supervisor.spending import calls_of, settled
from kernelforge.supervisor.types import LIVE, Run, RunStatus, Wish, WorkerState


def worker_command() -> tuple[str, ...]:
    """The command that works on a run; the run's folder and the worker's number follow."""
    return (sys.executable, "-m", "kernelforge", "runs", "work")


def start(project: Path, run: Run) -> RunFolder:
    """Start a run, one process for each of its devices.

    Raises:
        ProjectError: the project cannot be written.
    """
    folder = RunFolder.create(project.absolute(), run)
    with folder.lock():
        for number in range(len(run.devices)):
            _spawn(folder, run, number)
    return folder


def pause(folder: RunFolder) -> RunStatus:
    """Let no new trial start; what is under way is finished, and the process stays.

    Raises:
        UsageError: the run has ended.
    """
    return _tell(folder, "pause")


def stop(folder: RunFolder) -> RunStatus:
    """Finish the trial under way, store it, and end.

    Raises:
        UsageError: the run has ended.
    """
    return _tell(folder, "stop")


def resume(folder: RunFolder) -> RunStatus:
    """Let a run go on: one that is paused, and workers that ended before their budget did, with what is left of it.

    Raises:
        UsageError: there is nothing left to do. ProjectError: how far a worker is cannot be read.
    """
    with folder.lock():
        status = _settle(folder, folder.status())
        if status.live and status.state == "stopping":
            raise UsageError(f"run {folder.id} is stopping", hint="wait until it has, then resume it")
        dead = [i for i in range(len(status.workers)) if i not in status.live and _can_go_on(status, i)]
        if not dead and not status.live:
            reasons = " and ".join(sorted({_end_of(status, i) for i in range(len(status.workers))}))
            raise UsageError(
                f"run {folder.id} has nothing left to do; it ended by: {reasons}",
                hint=_another(folder),
            )
        folder.tell("run")
        for number in dead:
            _spawn(folder, status.run, number)
        return folder.status()


def cancel(folder: RunFolder) -> RunStatus:
    """Kill the run's processes, with their compilers and runners, now. The trial in flight is lost, nothing else.

    Raises:
        UsageError: the run has ended, or runs on another host.
    """
    with folder.lock():
        status = folder.status()
        if not status.live and status.state != "died":
            _refuse(folder, status)
        alive = [status.workers[i].owner for i in status.live]
        for owner in alive:
            if not is_here(owner):
                raise UsageError(
                    f"run {folder.id} is {_place_of(owner)}", hint=f"cancel it there, or: {command_of('stop', folder)}"
                )
        for pid in map(pid_of, alive):
            assert pid is not None, "it lives"
            kill_family(pid)
        owners = {w.owner for w in status.workers if w.owner}
        project = Project.open(folder.project)
        _free_orders(project, owners)
        for i, worker in enumerate(status.workers):
            if worker.stage in LIVE:
                # Read again: it may have finished trials since.
                ended = settled(folder.worker(i), project.order, calls_of(project))
                folder.write_worker(i, replace(ended, stage="cancelled", owner="", eta_s=None))
        return folder.status()


def _tell(folder: RunFolder, wish: Wish) -> RunStatus:
    with folder.lock():
        status = folder.status()
        if not status.live:
            _refuse(folder, status)
        if wish == "pause" and status.state == "stopping":
            raise UsageError(f"run {folder.id} is stopping", hint="wait until it has, then resume it")
        folder.tell(wish)
        return folder.status()


def _refuse(folder: RunFolder, status: RunStatus) -> NoReturn:
    if status.state == "unknown":
        unknown = next(w for w in status.workers if w.stage == "unknown")
        raise ProjectError(unknown.error, hint=unknown.hint)
    hint = f"go on with it: {command_of('resume', folder)}"
    if status.state == "finished":
        hint = _another(folder)
    raise UsageError(f"run {folder.id} works no more: {status.state}", hint=hint)


def _place_of(owner: str) -> str:
    host = host_of(owner)
    return (
        f"on {host}" if host != platform.node() else f"in a container, or on another machine, that is called {host} too"
    )


def _settle(folder: RunFolder, status: RunStatus) -> RunStatus:
    """Count what workers that are dead have spent until their end."""
    project = None
    for number in range(len(status.workers)):
        if number not in status.live and (worker := folder.worker(number)).unsettled:
            project = project or Project.open(folder.project)
            folder.write_worker(number, settled(worker, project.order, calls_of(project)))
    return folder.status()


def _end_of(status: RunStatus, number: int) -> str:
    """Why a worker cannot go on, in words."""
    worker, budget = status.workers[number], status.run.share(number)
    if (worker.tokens is None and budget.tokens is not None) or (worker.usd is None and budget.usd is not None):
        return "it is not known what was spent, so that the limit cannot be kept"
    return worker.reason or "its budget is spent"


def command_of(verb: str, folder: RunFolder) -> str:
    """The command line of a verb for a run, to be pasted into a shell."""
    return shlex.join(["kforge", "runs", verb, folder.id, "-p", str(folder.project)])


def _another(folder: RunFolder) -> str:
    return f"start another one: {shlex.join(['kforge', 'forge', str(folder.project), '--detach'])}"


def _can_go_on(status: RunStatus, number: int) -> bool:
    worker = status.workers[number]
    left = worker.left_of(status.run.share(number))
    return worker.stage != "finished" and 0 not in (left.trials, left.seconds, left.tokens, left.usd)


def _spawn(folder: RunFolder, run: Run, number: int) -> None:
    former, device = folder.worker(number), run.devices[number]

    def introduce(pid: int) -> None:
        # Before it begins, so that a run is never seen without its process.
        starting: WorkerState = replace(
            former, stage="starting", owner=owner_of(pid), heartbeat=time.time(), error="", hint="", reason=None
        )
        folder.write_worker(number, starting)

    spawn_detached(
        (*worker_command(), str(folder.path), str(number)), log=folder.log(number), on_spawned=introduce,
        changes={"CUDA_VISIBLE_DEVICES": device} if device else {},
    )  # fmt: skip


def _free_orders(project: Project, owners: set[str]) -> None:
    """What dead owners judged is anyone's; what they were asked for will not come."""

    def free(orders: Sequence[Order]) -> list[Order]:
        theirs = [o for o in orders if o.owner in owners]
        return [
            replace(o, state="delivered", owner="", expires=0.0)
            if o.candidate is not None
            else abandoned(o, "its proposer was cancelled")
            for o in theirs
        ]

    project.change_orders(free)
