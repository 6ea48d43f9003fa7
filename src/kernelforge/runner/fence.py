"""Keeps a Python process that will run a candidate's code from everything else, as far as this machine allows.

The same as `raise_fence` of kforge_runner.c, for processes that need an interpreter: no network, no file that can be
written to, no shared memory of others. Always in a user namespace of its own, so that also a process of root has no
power over those outside of it. Linux only; elsewhere nothing is fenced.
"""

from __future__ import annotations

import ctypes
import os
import resource
from pathlib import Path

_NEW_MOUNTS, _NEW_IPC, _NEW_USER, _NEW_NETWORK = 0x20000, 0x8000000, 0x10000000, 0x40000000
_MOUNT_SETATTR, _RECURSIVE, _HERE = 442, 0x8000, -100
_READ_ONLY, _PRIVATE = 0x1, 1 << 18
_CAPSET = {"x86_64": 126, "aarch64": 91}
_CAPABILITY_VERSION_3, _NO_NEW_PRIVILEGES = 0x20080522, 38


def raise_fence() -> tuple[str, ...]:
    """Raise it, as early as possible: only a process with one thread can. Which of "network" and "files" it keeps off.

    What does not work is left as it was; nothing is raised.
    """
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    uid, gid = os.geteuid(), os.getegid()
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.unshare(_NEW_MOUNTS | _NEW_NETWORK | _NEW_IPC | _NEW_USER):
            return ()
        _map_user(uid, gid)
        attributes = (ctypes.c_uint64 * 4)(_READ_ONLY, 0, _PRIVATE, 0)
        failed = libc.syscall(_MOUNT_SETATTR, _HERE, b"/", _RECURSIVE, attributes, ctypes.sizeof(attributes))
        _drop_capabilities(libc)
    except (OSError, AttributeError):
        return ()
    return ("network",) if failed else ("network", "files")


def _map_user(uid: int, gid: int) -> None:
    """The same user as before, inside of the namespace."""
    own = Path("/proc/self")
    (own / "setgroups").write_text("deny")
    (own / "uid_map").write_text(f"{uid} {uid} 1")
    (own / "gid_map").write_text(f"{gid} {gid} 1")


def _drop_capabilities(libc: ctypes.CDLL) -> None:
    """Those inside of the namespace, with which the fence could be taken down."""
    libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    number = _CAPSET.get(os.uname().machine)
    if number is not None:
        head, none = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0), (ctypes.c_uint32 * 6)()
        libc.syscall(number, head, none)
