"""`kforge forge --detach` and `kforge runs`, with processes that are real and search with fakes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.supervisor.conftest import Site, ended, make_site, until

from kernelforge.supervisor import control
from kernelforge.supervisor.folder import find_run


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    monkeypatch.chdir(tmp_path)
    yield from make_site(tmp_path, monkeypatch)


def test_detach_returns_at_once_and_attach_shows_what_the_foreground_does(kforge: Any, site: Site) -> None:
    started = time.monotonic()
    ran = kforge("forge", "tiny.kforge", "--trials", "3", "--detach")
    # Of the run itself nothing is awaited; what is left are imports.
    assert ran.code == 0 and time.monotonic() - started < 10
    run = ran.stdout.strip()
    assert ran.stderr == f"next: kforge runs attach {run} -p tiny.kforge\n"
    watched = kforge("runs", "attach", run)
    assert watched.code == 0
    lines = watched.stderr.splitlines()
    assert [line.split()[0] for line in lines[:3]] == ["[1/3]", "[2/3]", "[3/3]"]
    assert "#1  1.50x (1.40-1.60)" in lines[0]
    assert lines[3].startswith("3 trials in ") and lines[3].endswith("; ended by: --trials is spent")
    assert lines[4].startswith("busy: propose ") and lines[-1] == "next: kforge export tiny.kforge -o tiny.cast"
    assert "1.50x" in watched.stdout
    document = json.loads(kforge("runs", "attach", "--json").stdout)
    assert (document["trials"], document["stopped"], set(document["lanes"])) == (
        3, "trials", {"propose", "build", "judge"}
    )  # fmt: skip
    assert set(document["lanes"]["judge"]) == {"busy_s", "share"}


def test_ls(kforge: Any, site: Site) -> None:
    ran = kforge("runs", "ls")
    assert (ran.code, ran.stdout.splitlines()[-1]) == (0, "0 runs")
    assert ran.stderr == "next: kforge forge --detach\n"
    run = json.loads(kforge("forge", "--trials", "2", "--max-time", "1h", "-d", "--json").stdout)
    assert (run["state"], run["workers"], len(run["pids"])) == ("starting", 1, 1)
    ended(find_run([site.path], "latest"))
    (row,) = json.loads(kforge("runs", "ls", "--json").stdout)["runs"]
    assert {
        "id": run["id"],
        "state": "finished",
        "trials": 2,
        "expected": 2,
        "reason": "trials",
        "pids": [],
    }.items() <= (row.items())
    header, _, line, count = kforge("runs", "ls").stdout.splitlines()
    assert header.split() == ["run", "state", "trials", "worked", "left", "begun", "asked", "for", "ended", "by"]
    assert line.split()[:3] == [run["id"], "finished", "2/2"] and "all, 2 trials, 1h 00m" in line
    assert count == "1 run"


def test_runs_of_all_projects_here(kforge: Any, site: Site, tmp_path: Path) -> None:
    (tmp_path / "other.kforge").mkdir()
    ended(site.start(trials=1))
    assert len(json.loads(kforge("runs", "ls", "--json").stdout)["runs"]) == 1
    assert json.loads(kforge("runs", "ls", "-p", "other.kforge", "--json").stdout)["runs"] == []
    ran = kforge("runs", "attach", "zz")
    assert ran.code == 3 and "no run in other.kforge, tiny.kforge is called 'zz'" in ran.stderr
    assert "kforge runs ls" in ran.stderr


def test_pause_resume_stop_cancel(kforge: Any, site: Site) -> None:
    run = kforge("forge", "tiny.kforge", "--detach").stdout.strip()
    until(lambda: site.trials >= 1)
    folder = find_run([site.path], run)
    ran = kforge("runs", "pause", run[:4])
    assert ran.code == 0 and ran.stdout in (
        f"run {run}: pausing after the trial that is under way\n", f"run {run}: paused\n"
    )  # fmt: skip
    assert ran.stderr == f"next: kforge runs resume {run}\n"
    until(lambda: folder.status().state == "paused")
    assert json.loads(kforge("runs", "resume", "latest", "--json").stdout)["state"] == "running"
    assert kforge("runs", "stop", run, "-p", str(site.path)).code == 0
    assert ended(folder).state == "stopped"
    ran = kforge("runs", "stop", run)
    assert ran.code == 2 and ran.stderr.splitlines() == [
        f"error: run {run} works no more: stopped",
        f"hint: go on with it: kforge runs resume {run} -p tiny.kforge",
    ]
    assert kforge("runs", "resume", run).stdout == f"run {run}: starting\n"
    assert kforge("runs", "cancel", run).stdout == f"run {run}: cancelled\n"
    assert folder.status().state == "cancelled"


def test_ctrl_c_only_detaches(site: Site) -> None:
    folder = site.start()
    watcher = subprocess.Popen(
        [sys.executable, "-m", "kernelforge", "runs", "attach", "-p", str(site.path)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert watcher.stderr is not None and watcher.stderr.readline().startswith("[")
    watcher.send_signal(signal.SIGINT)
    _, said = watcher.communicate(timeout=30)
    assert watcher.returncode == 130
    assert "detaching; the run goes on" in said and f"watch it again: kforge runs attach {folder.id}" in said
    before = site.trials
    until(lambda: site.trials > before)
    assert folder.status().state == "running"


def test_a_run_that_failed_or_died_is_an_error_to_who_watches_it(
    kforge: Any, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_ERROR", "no compiler was found")
    run = kforge("forge", "--detach").stdout.strip()
    ran = kforge("runs", "attach", run)
    assert ran.code == 1 and ran.stderr.splitlines() == [
        f"error: run {run} failed: no compiler was found", "hint: install it"
    ]  # fmt: skip
    monkeypatch.delenv("FAKE_ERROR")
    kforge("runs", "resume", run)
    until(lambda: site.trials >= 1)
    folder = find_run([site.path], run)
    os.killpg(int(folder.worker(0).owner.split(":")[1]), signal.SIGKILL)
    until(lambda: folder.status().state == "died")
    assert " died " in kforge("runs", "ls").stdout
    ran = kforge("runs", "attach", run)
    assert ran.code == 1 and ran.stderr.splitlines()[-2:] == [
        f"error: run {run} died: its process ended without a word",
        f"hint: go on with it: kforge runs resume {run} -p tiny.kforge",
    ]


def test_what_is_off_is_said_before_anything_starts(kforge: Any, site: Site) -> None:
    for arguments, code, words in (
        (("--strategy", "best-guess"), 3, "best-guess"),
        (("soft",), 3, "soft"),
        (("--devices", "all"), 2, "was captured on the CPU"),
        (("--plan",), 2, "--plan"),
        (("--require-speedup", "1.1"), 2, "--require-speedup"),
    ):
        ran = kforge("forge", "tiny.kforge", *arguments, "--detach")
        assert ran.code == code and words in ran.stderr, arguments
    assert not (site.path / "runs").exists()


def test_a_project_with_a_live_run_is_not_replaced(kforge: Any, site: Site, tmp_path: Path) -> None:
    model = tmp_path / "model.py"
    model.write_text(
        "import torch\nModel = torch.nn.ReLU\n"
        "def get_inputs(): return [torch.ones(4)]\ndef get_init_inputs(): return []\n"
    )
    assert kforge("project", "pack", "tiny.kforge", "-o", "packed.anvil").code == 0
    run = kforge("forge", "tiny.kforge", "--detach").stdout.strip()
    until(lambda: site.trials >= 1)
    for command in (
        ("capture", str(model), "-o", "tiny.kforge", "--overwrite", "--device", "cpu"),
        ("project", "unpack", "packed.anvil", "-o", "tiny.kforge", "--overwrite"),
    ):
        refused = kforge(*command)
        assert refused.code == 2 and f"run {run} works on tiny.kforge" in refused.stderr
        assert f"kforge runs stop {run}" in refused.stderr
    assert kforge("runs", "cancel", run).code == 0
    assert kforge("project", "unpack", "packed.anvil", "-o", "tiny.kforge", "--overwrite").code == 0


def test_runs_of_what_is_no_project(kforge: Any, tmp_path: Path) -> None:
    refused = kforge("runs", "ls", "-p", str(tmp_path / "nope.kforge"))
    assert refused.code == 3 and "no project at" in refused.stderr


def test_the_background_command_is_hidden_and_is_what_is_started(kforge: Any) -> None:
    assert control.worker_command()[-2:] == ("runs", "work")
    assert "work" not in [line.split()[0] for line in kforge("runs", "--help").stdout.splitlines() if line.strip()]
    assert kforge("runs", "work", "--help").code == 0


@pytest.fixture
def two_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every --devices means the project's own one, twice."""
    monkeypatch.setattr("kernelforge.running._devices", lambda _project, wanted: ("", "") if wanted else ("",))


@pytest.mark.usefixtures("two_devices")
def test_workers_of_several_devices_are_watched_in_the_foreground(kforge: Any, site: Site) -> None:
    ran = kforge("forge", "tiny.kforge", "--devices", "0,1", "--trials", "6", "--json")
    assert ran.code == 0
    document = json.loads(ran.stdout)
    assert (document["trials"], document["stopped"], site.trials) == (6, "trials", 6)
    assert [line.split()[0] for line in ran.stderr.splitlines()][:6].count("[6/6]") == 1
    (row,) = json.loads(kforge("runs", "ls", "--json").stdout)["runs"]
    assert (row["workers"], row["state"], row["trials"]) == (2, "finished", 6)


@pytest.mark.usefixtures("two_devices")
def test_ctrl_c_in_the_foreground_stops_all_workers(kforge: Any, site: Site) -> None:
    def interrupt() -> None:
        until(lambda: site.trials >= 2)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    ran = kforge("forge", "tiny.kforge", "--devices", "all")
    thread.join()
    assert ran.code == 130 and "ended by: stopped" in ran.stderr
    assert ran.stderr.splitlines()[-1].startswith("resume: kforge ")
    assert find_run([site.path], "latest").status().state == "stopped"
    site.check()
