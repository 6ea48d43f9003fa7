"""Processes that outlive the one that starts them, and the end of a whole family of processes.

Unlike a worker of `kinds`, a detached process has no channel to anyone: it speaks through files.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import psutil

KILL_WAIT_S = 10.0


def spawn_detached(
    argv: Sequence[str], *, log: Path, changes: Mapping[str, str], on_spawned: Callable[[int], None]
) -> int:
    """Start a process in a session of its own, without a terminal; its pid.

    Args:
        argv: the command. It must read its standard input to the end before it does anything else: that ends when
            `on_spawned` has returned, or when this process has died.
        log: stdout and stderr are appended to it.
        changes: to our environment, which it gets.
        on_spawned: called with the pid.
    """
    gate, ours = os.pipe()
    try:
        pid = os.posix_spawn(
            argv[0], list(argv), {**os.environ, **changes}, setsid=True,
            file_actions=[
                (os.POSIX_SPAWN_DUP2, gate, 0),
                (os.POSIX_SPAWN_OPEN, 1, str(log), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644),
                (os.POSIX_SPAWN_DUP2, 1, 2),
            ],
        )  # fmt: skip
        on_spawned(pid)
    finally:
        os.close(gate)
        os.close(ours)
    return pid


def kill_family(pid: int) -> int:
    """Kill a process, its group and all its descendants, also those of other groups; how many were killed."""
    killed: set[int] = set()
    with contextlib.suppress(psutil.NoSuchProcess):
        root = psutil.Process(pid)
        # So that it starts nothing more, and its children do not lose their parent, while they are looked for.
        root.suspend()
        while True:
            alive = [p for p in root.children(recursive=True) if _is_alive(p) and p.pid not in killed]
            if not alive:
                break
            for process in alive:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
                killed.add(process.pid)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)
        root.kill()
        killed.add(pid)
        _wait_for_end(root)
    return len(killed)


def _is_alive(process: psutil.Process) -> bool:
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def _wait_for_end(process: psutil.Process) -> None:
    """Until it holds nothing any more; its parent may never reap it."""
    with contextlib.suppress(ChildProcessError, psutil.NoSuchProcess):
        os.waitpid(process.pid, 0)
        return
    deadline = KILL_WAIT_S
    while _is_alive(process) and deadline > 0:
        with contextlib.suppress(psutil.TimeoutExpired):
            process.wait(0.05)
        deadline -= 0.05
