"""Which workers live, and what is shown of those whose files cannot be read."""

from __future__ import annotations

import json
import platform
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from tests.search.test_owners import LINUX, changed, step_the_clock
from tests.supervisor.conftest import Site, ended, until

from kernelforge.errors import ProjectError, UsageError
from kernelforge.search.owners import is_gone, owner_of, pid_of
from kernelforge.search.types import Budget
from kernelforge.supervisor import control
from kernelforge.supervisor.folder import RunFolder, runs_of
from kernelforge.supervisor.types import Run, WorkerState


@pytest.fixture
def bystander() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    yield process
    process.kill()
    process.communicate()


def run_of(site: Site, worker: WorkerState) -> RunFolder:
    """A run whose worker wrote so last."""
    folder = RunFolder.create(site.path, Run(id="", created=time.time(), budget=Budget()))
    folder.write_worker(0, worker)
    return folder


@LINUX
def test_a_step_of_the_wall_clock_is_no_death(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = site.start()
    until(lambda: site.trials >= 1)
    owner = folder.worker(0).owner
    step_the_clock(tmp_path, monkeypatch, 1)
    assert (folder.status().state, folder.status().live) == ("running", (0,))
    assert control.cancel(folder).state == "cancelled"
    assert is_gone(owner)
    # Of psutil's, without its own view of the clock.
    monkeypatch.undo()
    pid = pid_of(owner)
    assert pid is not None and (not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)


@LINUX
def test_a_pid_of_a_container_is_not_one_of_ours(site: Site, bystander: subprocess.Popen[bytes]) -> None:
    owner = changed(owner_of(bystander.pid), namespace="17")
    worker = WorkerState(stage="running", owner=owner, heartbeat=time.time())
    folder = run_of(site, worker)
    assert folder.status().state == "running"
    with pytest.raises(UsageError, match=f"in a container, or on another machine, that is called {platform.node()}"):
        control.cancel(folder)
    assert bystander.poll() is None and not is_gone(owner_of(bystander.pid))
    folder.write_worker(0, replace(worker, heartbeat=time.time() - 3600))
    assert folder.status().state == "died", "silent for long"
    assert control.cancel(folder).state == "cancelled"
    assert bystander.poll() is None


def test_a_worker_of_an_older_version(site: Site, bystander: subprocess.Popen[bytes]) -> None:
    owner = f"{platform.node()}:{bystander.pid}:{psutil.Process(bystander.pid).create_time():.2f}"
    folder = run_of(site, WorkerState(stage="running", owner=owner))
    file = folder.path / "worker-0.json"
    record = json.loads(file.read_text())
    del record["unsettled"]
    file.write_text(json.dumps(record))
    assert folder.worker(0).unsettled == () and folder.status().state == "running"
    file.write_text(json.dumps({**record, "of_a_newer_version": 1, "owner": "nonsense"}))
    assert folder.status().state == "died"


@pytest.mark.parametrize("content", ["", "\0" * 40, '{"stage": "runn', "[]"])
def test_a_worker_whose_file_is_damaged_is_unknown_and_the_others_are_listed(content: str, site: Site) -> None:
    good, bad = site.start(trials=1), site.start(trials=1)
    for folder in (good, bad):
        ended(folder)
    file = bad.path / "worker-0.json"
    file.write_text(content)
    statuses = [folder.status() for folder in runs_of([site.path])]
    assert [s.state for s in statuses] == ["finished", "unknown"]
    (worker,) = statuses[1].workers
    assert worker.error.startswith(f"{file} is damaged: ") and worker.usd is None
    for verb in (control.stop, control.resume, control.cancel):
        with pytest.raises(ProjectError, match="is damaged") as raised:
            verb(bad)
        assert raised.value.hint.startswith(f"delete {file}: ")


def test_a_damaged_file_beside_a_worker_that_lives(site: Site) -> None:
    folder = site.start(workers=2)
    until(lambda: all(folder.worker(i).trials for i in (0, 1)))
    pid = pid_of(folder.worker(1).owner)
    assert pid is not None
    psutil.Process(pid).kill()
    until(lambda: folder.status().live == (0,))
    (folder.path / "worker-1.json").write_text("")
    assert folder.status().state == "running"
    with pytest.raises(ProjectError, match="is damaged"):
        control.resume(folder)
    assert control.cancel(folder).state == "unknown"
    assert folder.worker(0).stage == "cancelled"


def test_another_users_run_is_not_called_damaged(
    site: Site, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    folder = run_of(site, WorkerState(stage="running", owner="other:1:1.0", heartbeat=time.time()))
    read = Path.read_bytes
    forbidden = {"run.json", "worker-0.json"}

    def refuse(path: Path) -> bytes:
        if path.name in forbidden:
            raise PermissionError(13, "Permission denied")
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", refuse)
    monkeypatch.setattr(Path, "owner", lambda path: "ada")
    assert runs_of([site.path]) == []
    words = f"{folder.path / 'run.json'} belongs to ada and cannot be read by others"
    assert words in caplog.text and "damaged" not in caplog.text
    with pytest.raises(ProjectError) as raised:
        folder.run()
    assert raised.value.message == words and raised.value.hint == "ask for the run as ada"
    forbidden.remove("run.json")
    (worker,) = folder.status().workers
    assert folder.status().state == "unknown" and "belongs to ada" in worker.error and "delete" not in worker.hint
    for verb in (control.stop, control.resume, control.cancel):
        with pytest.raises(ProjectError, match="belongs to ada"):
            verb(folder)
