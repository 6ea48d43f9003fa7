"""Owners: dead, alive, or nothing is known; whatever the clock does, wherever the pid was given."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from kernelforge.search import owners
from kernelforge.search.owners import host_of, is_gone, is_here, owner_of, owner_of_this_process, pid_of

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
HOST, PID = platform.node(), os.getpid()


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    yield process
    process.kill()
    process.communicate()


def step_the_clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: int) -> None:
    """As psutil sees it: the kernel computes `btime` from the wall clock."""
    proc = tmp_path / "proc"
    proc.mkdir()
    for path in Path("/proc").iterdir():
        if path.name != "stat":
            (proc / path.name).symlink_to(path)
    lines = Path("/proc/stat").read_text().splitlines(keepends=True)
    moved = [f"btime {int(x.split()[1]) + seconds}\n" if x.startswith("btime") else x for x in lines]
    (proc / "stat").write_text("".join(moved))
    monkeypatch.setattr(psutil, "PROCFS_PATH", str(proc))


def changed(owner: str, **parts: str) -> str:
    names = ("host", "pid", "ticks", "boot", "namespace", "machine")
    return ":".join({**dict(zip(names, owner.split(":"), strict=True)), **parts}.values())


def test_a_process_and_what_is_none() -> None:
    me = owner_of_this_process()
    assert (host_of(me), pid_of(me)) == (HOST, PID) and me == owner_of(PID)
    assert is_here(me) and not is_gone(me)
    with pytest.raises(ProcessLookupError):
        owner_of(999_999_999)
    for nobody in ("", "somebody", f"{HOST}:", f"{HOST}:x:1.0", f"{HOST}:0:1.0", f"{HOST}:{PID}:?", f"{HOST}:-1:1.0"):
        assert not is_gone(nobody) and not is_here(nobody) and pid_of(nobody) is None


def test_a_process_that_ended_and_was_not_reaped_is_gone(child: subprocess.Popen[bytes]) -> None:
    owner = owner_of(child.pid)
    assert not is_gone(owner)
    child.kill()
    deadline = time.monotonic() + 10
    while not is_gone(owner):
        assert time.monotonic() < deadline
    child.communicate()
    assert is_gone(owner)


@LINUX
@pytest.mark.parametrize("seconds", [1, -3600, 86400])
def test_a_step_of_the_wall_clock_kills_nobody(
    seconds: int, child: subprocess.Popen[bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    me, other = owner_of_this_process(), owner_of(child.pid)
    step_the_clock(tmp_path, monkeypatch, seconds)
    assert not is_gone(me) and not is_gone(other)
    assert owner_of_this_process() == me, "an order is still its own"


@LINUX
def test_a_pid_that_was_given_again_is_another_process(child: subprocess.Popen[bytes]) -> None:
    owner = owner_of(child.pid)
    assert is_gone(changed(owner, ticks="17")) and is_gone(changed(owner, pid="999999999"))


@LINUX
def test_the_same_pid_in_another_namespace_is_not_known() -> None:
    """A container that has the host's name."""
    unshare = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--mount-proc"]
    program = "from kernelforge.search.owners import owner_of_this_process as o; print(o(), flush=True); input()"
    with subprocess.Popen(
        [*unshare, sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        owner = process.stdout.readline().strip()
        if not owner:
            pytest.skip("no pid namespaces here")
        assert host_of(owner) == HOST and pid_of(owner) != process.pid
        assert not is_gone(owner) and not is_here(owner)
        process.communicate("\n")
    assert not is_gone(owner)


@LINUX
def test_after_a_boot_of_the_same_machine_all_are_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(owners, "_MACHINE_ID", tmp_path / "machine-id")
    (tmp_path / "machine-id").write_text("0123456789abcdef" * 2 + "\n")
    before = changed(owner_of_this_process(), boot="0" * 32)
    assert "0123456789abcdef" not in before, "it is confidential"
    assert is_gone(before) and not is_here(before)
    assert not is_gone(changed(before, namespace="1")), "a container may have its image's machine id"
    assert not is_gone(changed(before, host=f"another-{HOST}"))
    (tmp_path / "machine-id").write_text("f" * 32)
    assert not is_gone(before), "another machine of the same name"
    for text in ("", "uninitialized\n"):
        (tmp_path / "machine-id").write_text(text)
        assert not is_gone(before) and not is_gone(changed(before, machine=""))
    (tmp_path / "machine-id").unlink()
    assert not is_gone(changed(before, machine=""))


@LINUX
def test_where_the_kernel_tells_less(
    child: subprocess.Popen[bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on other systems: by the clock."""
    linux = owner_of(child.pid)
    monkeypatch.setattr(owners, "_PROC", tmp_path)
    owner = owner_of(child.pid)
    assert len(owner.split(":")) == 3 and is_here(owner) and not is_gone(owner)
    assert not is_gone(linux) and not is_here(linux)
    with pytest.raises(ProcessLookupError):
        owner_of(999_999_999)


def test_owners_of_older_versions(child: subprocess.Popen[bytes]) -> None:
    started = psutil.Process(child.pid).create_time()
    for off_s in (0.0, 1.0, -3.0):
        assert not is_gone(f"{HOST}:{child.pid}:{started + off_s:.2f}"), "a clock that was stepped"
    assert is_here(f"{HOST}:{child.pid}:{started:.2f}")
    assert is_gone(f"{HOST}:{child.pid}:1.00") and is_gone(f"{HOST}:999999999:{started:.2f}")
    assert is_gone(f"{HOST}:{10**30}:{started:.2f}")
    assert not is_gone(f"another-{HOST}:{child.pid}:1.00") and not is_here(f"another-{HOST}:{child.pid}:1.00")
    child.kill()
    child.wait()
    assert is_gone(f"{HOST}:{child.pid}:{started:.2f}")


@LINUX
def test_a_process_that_proc_hides_is_not_gone(
    child: subprocess.Popen[bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another user's, where /proc is mounted with hidepid."""
    owner = owner_of(child.pid)
    (tmp_path / "self").symlink_to(f"/proc/{PID}")
    (tmp_path / "sys").symlink_to("/proc/sys")
    monkeypatch.setattr(owners, "_PROC", tmp_path)
    assert is_here(owner)

    def forbid(pid: int, number: int) -> None:
        raise PermissionError

    with monkeypatch.context() as patched:
        patched.setattr(os, "kill", forbid)
        assert not is_gone(owner)
    child.kill()
    child.wait()
    assert is_gone(owner)
