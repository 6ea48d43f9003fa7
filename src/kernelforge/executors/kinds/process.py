"""A worker process of its own process group. Owns spawning, limits, output capture and killing.

What ends it: its wall deadline, its memory limit (resident memory of the tree, polled: address-space limits would break
CUDA), `close`, or the death of this process. The last works without cooperation of the worker's work: the worker
holds one end of a pipe whose other end only this process has, and asks the kernel for SIGKILL when that closes
(PR_SET_PDEATHSIG would fire when the *thread* that spawned it ends).
"""

from __future__ import annotations

import contextlib
import os
import secrets
import select
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil

from kernelforge.errors import HarnessError
from kernelforge.executors.types import PACKET_BYTES, Death, DeathKind, Limits

POLL_S = 0.05
"""How often memory is looked at while a request runs: tens of microseconds of work each."""
TREE_SCAN_EVERY = 8
"""Every how many polls descendants are searched for, which costs milliseconds."""
GRACE_S = 2.0
"""How long a process that has closed its channel may take to exit by itself."""


class ProcessWorker:
    """A child process that serves a packet socket; see `executors.types.Worker`.

    Args:
        argv: the command; `--control FD` and `--lifeline FD` are appended, the worker's ends of both.
        fds: further descriptors that the child inherits, with the same numbers.
        uid: the unprivileged user that the child will change to, or 0. Everything of that user is killed at the end,
            so it must be this worker's own; see `fresh_uid`.
        env: the whole environment of the child; None gives it ours, which is for trusted programs only.
    """

    def __init__(
        self,
        argv: Sequence[str],
        *,
        limits: Limits,
        env: Mapping[str, str] | None,
        fds: Sequence[int] = (),
        uid: int = 0,
    ) -> None:
        self._limits, self._uid, self._granted = limits, uid, 0
        self._death: Death | None = None
        self._output = bytearray()
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        lifeline, self._lifeline = os.pipe()
        capture, write_end = os.pipe()
        self._capture = capture
        try:
            command = [*argv, "--control", str(theirs.fileno()), "--lifeline", str(lifeline)]
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=write_end, stderr=write_end, env=env,
                start_new_session=True, pass_fds=(theirs.fileno(), lifeline, *fds),
            )  # fmt: skip
        except BaseException:
            self._channel.close()
            os.close(self._lifeline)
            os.close(capture)
            raise
        finally:
            theirs.close()
            os.close(lifeline)
            os.close(write_end)
        os.set_blocking(capture, False)
        self._pidfd = os.pidfd_open(self._process.pid)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def death(self) -> Death | None:
        """How it died, or None while it lives."""
        return self._death

    def output(self) -> str:
        """The last bytes of its stdout and stderr so far."""
        self._drain()
        return self._output.decode(errors="replace")

    def grant(self, memory_bytes: int) -> None:
        self._granted += memory_bytes

    def request(self, message: bytes, *, fds: Sequence[int] = (), wall_s: float | None = None) -> bytes | Death:
        if self._death is not None:
            return self._death
        if len(message) > PACKET_BYTES:
            raise HarnessError(f"a packet of {len(message)} bytes exceeds the limit of {PACKET_BYTES}")
        limit = self._limits.wall_s if wall_s is None else wall_s
        if message:
            try:
                socket.send_fds(self._channel, [message], list(fds))
            except OSError:
                return self._died_by_itself()
        return self._await_reply(limit)

    def die(self, kind: DeathKind, detail: str) -> Death:
        """Kill it, for example because its reply made no sense; every later request returns this death."""
        if self._death is None:
            self._kill()
            self._drain()
            self._death = Death(kind=kind, detail=detail, output=self._output.decode(errors="replace"))
        return self._death

    def close(self) -> None:
        if self._pidfd < 0:
            return
        # Before the channel ends: a worker that sees that leaves by itself, and what it started is no longer below it.
        self._kill()
        self._channel.close()
        os.close(self._capture)
        os.close(self._lifeline)
        os.close(self._pidfd)
        self._pidfd = -1
        if self._death is None:
            self._death = Death(kind="crash", detail="the worker was closed")

    def _await_reply(self, wall_s: float) -> bytes | Death:
        deadline = time.monotonic() + wall_s
        poller = select.poll()
        poller.register(self._channel, select.POLLIN)
        poller.register(self._capture, select.POLLIN)
        poller.register(self._pidfd, select.POLLIN)
        next_look = time.monotonic() + POLL_S
        looks = 0
        while True:
            left = min(deadline, next_look) - time.monotonic()
            ready = dict(poller.poll(max(left, 0) * 1000))
            if ready.get(self._capture, 0) and not self._drain():
                poller.unregister(self._capture)
            if self._channel.fileno() in ready:
                return self._receive()
            if self._pidfd in ready:
                return self._died_by_itself()
            if time.monotonic() >= deadline:
                return self.die("timeout", f"no reply within {wall_s:g} s")
            if time.monotonic() >= next_look:
                next_look = time.monotonic() + POLL_S
                used = self._resident(whole_tree=looks % TREE_SCAN_EVERY == TREE_SCAN_EVERY - 1)
                looks += 1
                if used > self._limits.memory_bytes + self._granted:
                    over = f"{used >> 20} MiB resident, {(self._limits.memory_bytes + self._granted) >> 20} allowed"
                    return self.die("oom", over)

    def _receive(self) -> bytes | Death:
        try:
            reply = self._channel.recv(PACKET_BYTES)
        except OSError:
            reply = b""
        return reply or self._died_by_itself()

    def _died_by_itself(self) -> Death:
        try:
            code = self._process.wait(GRACE_S)
        except subprocess.TimeoutExpired:
            return self.die("crash", "it closed its channel without a reply and kept running")
        if code == -signal.SIGKILL:
            return self.die("oom", "killed by SIGKILL from outside, most likely by the kernel's out-of-memory killer")
        if code < 0:
            return self.die("crash", f"killed by {signal.Signals(-code).name}")
        return self.die("crash", f"exited with status {code} without a reply")

    def _drain(self) -> bool:
        """Read what the pipe holds; False at its end."""
        keep = self._limits.output_bytes
        # Bounded, so that a worker that prints without end cannot hold this process here past the deadline.
        for _ in range(16):
            try:
                data = os.read(self._capture, 1 << 16)
            except BlockingIOError:
                return True
            if not data:
                return False
            self._output += data
            del self._output[: max(0, len(self._output) - keep)]
        return True

    def _resident(self, *, whole_tree: bool) -> int:
        try:
            process = psutil.Process(self._process.pid)
            family = [process, *process.children(recursive=True)] if whole_tree else [process]
        except psutil.NoSuchProcess:
            return 0
        total = 0
        for member in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                total += member.memory_info().rss
        return total

    def _kill(self) -> None:
        """Kill the group, descendants that left it, and everything of the worker's own user; reap the child."""
        strays: list[psutil.Process] = []
        with contextlib.suppress(psutil.NoSuchProcess):
            strays = psutil.Process(self._process.pid).children(recursive=True)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        for stray in strays:
            with contextlib.suppress(psutil.NoSuchProcess):
                stray.kill()
        self._process.kill()
        self._process.wait()
        if self._uid:
            kill_user(self._uid)


def bare_environment() -> dict[str, str]:
    """What an untrusted child may see of our environment: which devices and libraries to use, and no keys or tokens."""
    kept = ("PATH", "LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "CUDA_MODULE_LOADING")
    # Not a setting of ours: the child gets it as it is.
    return {name: os.environ[name] for name in kept if name in os.environ} | {"LC_ALL": "C", "HOME": "/nonexistent"}


def fresh_uid() -> int:
    """An unprivileged user id that nobody else has, or 0 when this process may not change user."""
    if os.geteuid() != 0:
        return 0
    uid = (1 << 30) + secrets.randbelow(1 << 29)
    for line in Path("/proc/self/uid_map").read_text().splitlines():
        first, _, count = (int(field) for field in line.split())
        if first <= uid < first + count:
            return uid
    return 0


def kill_user(uid: int) -> None:
    """Kill every process of a user; again, until none is left, for as long as they can fork."""
    for _ in range(50):
        mine = [p for p in psutil.process_iter(["uids"]) if p.info["uids"] and p.info["uids"].real == uid]
        living = [p for p in mine if p.status() != psutil.STATUS_ZOMBIE]
        if not living:
            return
        for process in living:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        time.sleep(0.01)
