"""Who works on an order or a run, as a string that tells a dead process from one that lives. Owns its format.

`HOST:PID:TICKS:BOOT:NAMESPACE:MACHINE` on Linux: what the kernel noted once of a process and never computes anew. TICKS
since the boot is when it started, BOOT which boot, NAMESPACE which pids are meant, MACHINE a digest of the machine's id
("" if it has none). Where the kernel does not tell, and in what older versions wrote, `HOST:PID:SECONDS`: POSIX seconds
of the start. Those move whenever the wall clock is set.
"""

from __future__ import annotations

import os
import platform
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from kernelforge.digest import digest_bytes

CLOCK_TOLERANCE_S = 10.0
"""So far a start in POSIX seconds may have moved: clocks are stepped, and a pid comes back later than that."""

_PROC = Path("/proc")
_MACHINE_ID = Path("/etc/machine-id")


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a pid means something: one boot of a kernel, one pid namespace of it."""

    boot: str
    namespace: str
    machine: str


@dataclass(frozen=True, slots=True)
class _Owner:
    """An owner's string in parts. `started`: ticks with a place, POSIX seconds without."""

    host: str
    pid: int
    started: float
    place: _Place | None


def owner_of_this_process() -> str:
    """Who works on an order or a run: this process."""
    return owner_of(os.getpid())


def owner_of(pid: int) -> str:
    """The owner that a process of this host is.

    Raises:
        ProcessLookupError: there is no such process.
    """
    place = _here()
    if place is None:
        try:
            return f"{platform.node()}:{pid}:{psutil.Process(pid).create_time():.2f}"
        except psutil.NoSuchProcess as error:
            raise ProcessLookupError(f"there is no process {pid}") from error
    try:
        _, ticks = _stat(pid)
    except OSError as error:
        raise ProcessLookupError(f"there is no process {pid}") from error
    return f"{platform.node()}:{pid}:{ticks}:{place.boot}:{place.namespace}:{place.machine}"


def is_gone(owner: str) -> bool:
    """Whether an owner is surely dead. Of other machines and pid namespaces nothing is known, so that they are not."""
    who = _parse(owner)
    if who is None:
        return False
    if who.place is None:
        return who.host == platform.node() and _is_gone_by_the_clock(who)
    here = _here()
    # Numbers of namespaces that are not a kernel's first are given again after a boot: such a one tells nothing, too.
    if here is None or who.place.namespace != here.namespace:
        return False
    if who.place.boot != here.boot:
        return who.host == platform.node() and here.machine != "" and who.place.machine == here.machine
    return _is_gone_here(who)


def is_here(owner: str) -> bool:
    """Whether the owner's pid is one of those that this process sees, so that `is_gone` knows and a signal arrives."""
    who = _parse(owner)
    if who is None:
        return False
    if who.place is None:
        return who.host == platform.node()
    here = _here()
    return here is not None and (who.place.boot, who.place.namespace) == (here.boot, here.namespace)


def pid_of(owner: str) -> int | None:
    """The process's number, None if this is no owner that a process is."""
    who = _parse(owner)
    return None if who is None else who.pid


def host_of(owner: str) -> str:
    """The name that the owner's host had."""
    return owner.partition(":")[0]


def _parse(owner: str) -> _Owner | None:
    host, *rest = owner.split(":")
    with suppress(ValueError):
        match rest:
            case [pid, seconds] if int(pid) > 0:
                return _Owner(host, int(pid), float(seconds), None)
            case [pid, ticks, boot, namespace, machine] if int(pid) > 0 and boot and namespace:
                return _Owner(host, int(pid), int(ticks), _Place(boot, namespace, machine))
    return None


def _here() -> _Place | None:
    """The place of this process, None if the kernel does not tell all of it."""
    try:
        # A /proc of another pid namespace, as after `unshare --pid` alone, speaks of other processes.
        if (_PROC / "self").readlink().name != str(os.getpid()):
            return None
        boot = (_PROC / "sys/kernel/random/boot_id").read_text().strip().replace("-", "")
        namespace = "".join(c for c in str((_PROC / "self/ns/pid").readlink()) if c.isdigit())
    except OSError:
        return None
    return _Place(boot, namespace, _machine()) if boot and namespace else None


def _machine() -> str:
    try:
        text = _MACHINE_ID.read_text().strip()
    except OSError:
        return ""
    # machine-id(5): the id itself is not to be handed on, and projects are.
    return digest_bytes(f"kernelforge {text}".encode())[:16] if len(text) == 32 else ""


def _stat(pid: int) -> tuple[str, int]:
    """State and start, in ticks since the boot, of a process; raises OSError if there is none or it is hidden."""
    # The second field is a name in parentheses, which may hold any character; state is the 3rd, the start the 22nd.
    fields = (_PROC / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()
    if len(fields) < 20:
        raise ProcessLookupError(f"there is no process {pid}")
    return fields[0], int(fields[19])


def _is_gone_here(who: _Owner) -> bool:
    try:
        state, ticks = _stat(who.pid)
    except OSError:
        return not _is_hidden(who.pid)
    # One that ended and that its parent has not reaped yet holds nothing any more.
    return ticks != who.started or state in "ZX"


def _is_gone_by_the_clock(who: _Owner) -> bool:
    try:
        process = psutil.Process(who.pid)
        moved_s = abs(process.create_time() - who.started)
        return moved_s > CLOCK_TOLERANCE_S or process.status() == psutil.STATUS_ZOMBIE
    except psutil.AccessDenied:
        return False
    except psutil.Error:
        return not _is_hidden(who.pid)


def _is_hidden(pid: int) -> bool:
    """Whether there is a process that /proc does not show: another user's, under `hidepid`."""
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except (OSError, OverflowError):
        return False
    return False
