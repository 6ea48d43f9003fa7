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

from kernelforge.errors import UsageError
from kernelforge.executors.detached import kill_family, spawn_detached
from kernelforge.search.orders import Order
from kernelforge.search.study import owner_of
from kernelforge.store.project import Project
from kernelforge.supervisor.folder import RunFolder, host_of
from kernelforge.supervisor.types import LIVE, Run, RunStatus, State, Wish, WorkerState


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
        UsageError: there is nothing left to do.
    """
    with folder.lock():
        status = folder.status()
        if status.live and status.state == "stopping":
            raise UsageError(f"run {folder.id} is stopping", hint="wait until it has, then resume it")
        dead = [i for i in range(len(status.workers)) if i not in status.live and _can_go_on(status, i)]
        if not dead and not status.live:
            reasons = " and ".join(sorted({str(w.reason) for w in status.workers}))
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
            _refuse(folder, status.state)
        for i in status.live:
            if (host := host_of(status.workers[i])) != platform.node():
                raise UsageError(
                    f"run {folder.id} is on {host}", hint=f"cancel it there, or: {command_of('stop', folder)}"
                )
        for i in status.live:
            kill_family(int(status.workers[i].owner.split(":")[1]))
        owners = {w.owner for w in status.workers if w.owner}
        _free_orders(Project.open(folder.project), owners)
        for i, worker in enumerate(status.workers):
            if worker.stage in LIVE:
                # Read again: it may have finished trials since.
                folder.write_worker(i, replace(folder.worker(i), stage="cancelled", owner="", eta_s=None))
        return folder.status()


def _tell(folder: RunFolder, wish: Wish) -> RunStatus:
    with folder.lock():
        status = folder.status()
        if not status.live:
            _refuse(folder, status.state)
        if wish == "pause" and status.state == "stopping":
            raise UsageError(f"run {folder.id} is stopping", hint="wait until it has, then resume it")
        folder.tell(wish)
        return folder.status()


def _refuse(folder: RunFolder, state: State) -> NoReturn:
    hint = f"go on with it: {command_of('resume', folder)}"
    if state == "finished":
        hint = _another(folder)
    raise UsageError(f"run {folder.id} works no more: {state}", hint=hint)


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
            else replace(o, state="failed", owner="", detail="its proposer was cancelled")
            for o in theirs
        ]

    project.change_orders(free)
