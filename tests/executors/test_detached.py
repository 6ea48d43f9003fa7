"""Processes that outlive their parent, and the end of a family."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import psutil

from kernelforge.executors.detached import kill_family, spawn_detached

FAMILY = """
import subprocess, sys
sys.stdin.buffer.read()
child = subprocess.Popen([sys.executable, "-c", "import subprocess, time; subprocess.Popen(['sleep', '600'], "
                          "start_new_session=True); time.sleep(600)"])
print("begun", flush=True)
child.wait()
"""


def test_it_begins_when_it_was_introduced_in_a_session_of_its_own(tmp_path: Path) -> None:
    seen: list[int] = []
    log = tmp_path / "log"

    def introduce(pid: int) -> None:
        time.sleep(0.3)
        assert not log.read_text(), "it waits"
        seen.append(pid)

    script = "import os, sys; sys.stdin.buffer.read(); print(os.getsid(0), os.environ['NEW'], 'PATH' in os.environ)"
    pid = spawn_detached([sys.executable, "-c", script], log=log, changes={"NEW": "x"}, on_spawned=introduce)
    assert os.waitpid(pid, 0) == (pid, 0)
    assert seen == [pid] and log.read_text() == f"{pid} x True\n"


def test_a_family_is_killed_across_groups(tmp_path: Path) -> None:
    log = tmp_path / "log"
    pid = spawn_detached([sys.executable, "-c", FAMILY], log=log, changes={}, on_spawned=lambda _: None)
    deadline = time.monotonic() + 30
    while len(psutil.Process(pid).children(recursive=True)) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    family = psutil.Process(pid).children(recursive=True)
    assert len({os.getpgid(p.pid) for p in family}) == 2
    assert kill_family(pid) == 3
    _, alive = psutil.wait_procs(family, timeout=10)
    assert not [p for p in alive if p.status() != psutil.STATUS_ZOMBIE]
    assert kill_family(pid) == 0


def test_a_process_that_is_gone_already() -> None:
    process = subprocess.Popen(["true"])
    process.wait()
    assert kill_family(process.pid) == 0
