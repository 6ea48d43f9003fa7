"""Workers: replies, deaths and clean-up, for processes and (where it has the same meaning) threads."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from kernelforge.errors import HarnessError
from kernelforge.executors.kinds.inline import InlineWorker
from kernelforge.executors.kinds.process import ProcessWorker
from kernelforge.executors.types import PACKET_BYTES, Death, Limits, Worker

SERVER = """
import os, socket, subprocess, sys, time
channel = socket.socket(fileno=int(sys.argv[sys.argv.index("--control") + 1]))
while True:
    data, fds, _, _ = socket.recv_fds(channel, 1000, 4)
    match data:
        case b"": break
        case b"exit": os._exit(7)
        case b"abort": os.abort()
        case b"hang": time.sleep(600)
        case b"shout":
            for _ in range(300):
                os.write(1, b"x" * 65536)
            channel.send(b"done")
        case b"hog":
            kept = []
            while True:
                kept.append(bytearray(os.urandom(1 << 20)) * 16)
        case b"children":
            outside = subprocess.Popen(["sleep", "600"], start_new_session=True)
            inside = subprocess.Popen(["sleep", "600"])
            channel.send(f"{outside.pid} {inside.pid}".encode())
        case b"fd": channel.send(os.pread(fds[0], 100, 0))
        case _: channel.send(data[::-1])
"""


def spawn(limits: Limits) -> ProcessWorker:
    return ProcessWorker([sys.executable, "-c", SERVER], limits=limits, env={"PATH": os.defpath})


def reverse(channel: socket.socket) -> None:
    while data := channel.recv(1000):
        if data == b"exit":
            return
        if data == b"hang":
            channel.recv(1000)
            return
        channel.send(data[::-1])


@pytest.fixture(params=["process", "inline"])
def worker(request: pytest.FixtureRequest) -> Iterator[Worker]:
    made: Worker = spawn(Limits(wall_s=1)) if request.param == "process" else InlineWorker(reverse, wall_s=1)
    yield made
    made.close()
    made.close()


def death(reply: bytes | Death) -> Death:
    assert isinstance(reply, Death)
    return reply


def gone(pid: int) -> bool:
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        if not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
            return True
        time.sleep(0.02)
    return False


def test_answers_in_turn(worker: Worker) -> None:
    assert [worker.request(text, wall_s=10) for text in (b"abc", b"de")] == [b"cba", b"ed"]


def test_leaving_without_a_reply_is_a_crash_for_good(worker: Worker) -> None:
    first = death(worker.request(b"exit", wall_s=10))
    assert first.kind == "crash"
    assert worker.request(b"abc") == first


def test_no_reply_in_time_is_a_timeout(worker: Worker) -> None:
    assert worker.request(b"abc", wall_s=10) == b"cba"
    started = time.monotonic()
    assert death(worker.request(b"hang", wall_s=0.3)).kind == "timeout"
    assert time.monotonic() - started < 3


def test_death_names_the_signal_or_the_status() -> None:
    for order, words in ((b"abort", "SIGABRT"), (b"exit", "status 7")):
        worker = spawn(Limits(wall_s=10))
        assert words in death(worker.request(order)).detail
        worker.close()


def test_descriptors_travel(tmp_path: Path) -> None:
    (tmp_path / "text").write_bytes(b"through a descriptor")
    worker = spawn(Limits(wall_s=10))
    with (tmp_path / "text").open("rb") as file:
        assert worker.request(b"fd", fds=[file.fileno()]) == b"through a descriptor"
    worker.close()


def test_output_is_drained_and_bounded() -> None:
    worker = spawn(Limits(wall_s=20, output_bytes=1000))
    assert worker.request(b"shout") == b"done"
    assert worker.output() == "x" * 1000
    worker.close()


def test_memory_beyond_limit_and_grant_is_oom() -> None:
    worker = spawn(Limits(wall_s=20, memory_bytes=64 << 20))
    worker.grant(64 << 20)
    found = death(worker.request(b"hog"))
    assert (found.kind, "128 allowed" in found.detail) == ("oom", True)
    worker.close()


def test_close_kills_descendants_that_left_the_group(monkeypatch: pytest.MonkeyPatch) -> None:
    kill = ProcessWorker._kill

    def late(worker: ProcessWorker) -> None:
        time.sleep(0.3)  # time enough for a worker whose channel has ended to leave its children behind
        kill(worker)

    monkeypatch.setattr(ProcessWorker, "_kill", late)
    worker = spawn(Limits(wall_s=10))
    reply = worker.request(b"children")
    assert isinstance(reply, bytes)
    pids = [worker.pid, *map(int, reply.split())]
    worker.close()
    assert all(gone(pid) for pid in pids)


def test_oversized_request_is_our_own_fault() -> None:
    worker = spawn(Limits())
    with pytest.raises(HarnessError):
        worker.request(b"x" * (PACKET_BYTES + 1))
    worker.close()


def test_program_that_does_not_exist_leaves_nothing_open() -> None:
    before = sum(1 for _ in Path("/proc/self/fd").iterdir())
    with pytest.raises(FileNotFoundError):
        ProcessWorker(["/nonexistent/program"], limits=Limits(), env=None)
    assert sum(1 for _ in Path("/proc/self/fd").iterdir()) == before


def test_killed_from_outside_reads_as_oom() -> None:
    worker = spawn(Limits(wall_s=10))
    assert worker.request(b"abc") == b"cba"
    subprocess.run(["kill", f"-{signal.SIGKILL.value}", str(worker.pid)], check=True)
    assert death(worker.request(b"abc")).kind == "oom"
    worker.close()
