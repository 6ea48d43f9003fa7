"""Runs in processes of their own: started, paused, resumed, stopped, cancelled, killed. The processes are real."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import psutil
import pytest
from tests.supervisor.conftest import Site, ended, until

from kernelforge.errors import NotFound, UsageError
from kernelforge.search.owners import is_gone
from kernelforge.store.project import Project
from kernelforge.supervisor import control
from kernelforge.supervisor.folder import RunFolder, find_run, runs_of


def pid_of(folder: RunFolder, worker: int = 0) -> int:
    return int(folder.worker(worker).owner.split(":")[1])


def test_a_run_spends_its_budget_and_ends(site: Site) -> None:
    folder = site.start(trials=5)
    assert folder.status().state in ("starting", "running") and folder.status().live == (0,)
    assert os.getsid(pid_of(folder)) == pid_of(folder) != os.getsid(0)
    status = ended(folder)
    (worker,) = status.workers
    assert (status.state, worker.reason, worker.trials, site.trials) == ("finished", "trials", 5, 5)
    assert worker.seconds > 0 and set(worker.busy_s) == {"propose", "build", "judge"}
    site.check()
    with pytest.raises(UsageError, match="nothing left to do; it ended by: trials"):
        control.resume(folder)
    for verb in (control.pause, control.stop, control.cancel):
        with pytest.raises(UsageError, match="finished"):
            verb(folder)


def test_a_paused_run_begins_nothing_and_goes_on_when_it_is_resumed(site: Site) -> None:
    folder = site.start(trials=15)
    until(lambda: site.trials >= 3)
    assert control.pause(folder).state in ("pausing", "paused")
    until(lambda: folder.status().state == "paused")
    before, worker, pid = site.trials, folder.worker(0), pid_of(folder)
    assert not [o for o in Project.open(site.path).orders() if o.state == "judging"], "what it held is anyone's"
    time.sleep(0.5)
    assert site.trials == before and psutil.pid_exists(pid)
    assert folder.worker(0).seconds - worker.seconds < 0.1
    assert control.resume(folder).state == "running" and pid_of(folder) == pid
    assert ended(folder).state == "finished" and site.trials == 15


def test_a_stopped_run_stores_its_trial_and_may_be_resumed(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_JUDGE_S", "0.5")
    folder = site.start(trials=4)
    until(lambda: len(site.judged()) == 2)
    assert control.stop(folder).state == "stopping"
    with pytest.raises(UsageError, match="is stopping"):
        control.pause(folder)
    assert ended(folder).state == "stopped"
    assert site.trials == len(site.judged()) == folder.worker(0).trials == 2
    control.resume(folder)
    assert ended(folder).state == "finished" and site.trials == 4, "with what was left of its budget"
    site.check()


def test_a_signal_stops_a_run_too(site: Site) -> None:
    folder = site.start()
    until(lambda: site.trials >= 1)
    os.kill(pid_of(folder), signal.SIGTERM)
    assert ended(folder).state == "stopped"
    site.check()


def test_cancel_kills_all_and_frees_the_order(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_JUDGE_S", "60")
    monkeypatch.setenv("FAKE_CHILD", "1")
    folder = site.start(trials=6)
    child = site.path / "child.txt"
    until(lambda: child.exists() and child.read_text())
    owner, pid = folder.worker(0).owner, int(child.read_text())
    assert psutil.pid_exists(pid) and os.getpgid(pid) == pid
    assert control.cancel(folder).state == "cancelled"
    assert is_gone(owner)
    until(lambda: not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
    orders = Project.open(site.path).orders()
    assert orders and all((o.state, o.owner) == ("delivered", "") for o in orders)
    delivered = {o.candidate.source for o in orders if o.candidate is not None}
    monkeypatch.setenv("FAKE_JUDGE_S", "0.01")
    monkeypatch.delenv("FAKE_CHILD")
    other = site.start(trials=4)
    assert ended(other).state == "finished"
    assert delivered <= {source for texts in site.sources().values() for source in texts}
    control.resume(folder)
    assert ended(folder).state == "finished" and site.trials == 10
    site.check()


def test_a_paused_run_is_stopped_or_cancelled_at_once(site: Site) -> None:
    for verb, state in ((control.stop, "stopped"), (control.cancel, "cancelled")):
        folder = site.start()
        until(lambda folder=folder: folder.status().state == "running")  # type: ignore[misc]
        control.pause(folder)
        until(lambda folder=folder: folder.status().state == "paused")  # type: ignore[misc]
        verb(folder)
        assert ended(folder).state == state
    site.check()


def test_a_killed_run_has_died_and_goes_on_with_what_is_left(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_JUDGE_S", "0.2")
    folder = site.start(trials=8)
    until(lambda: len(site.judged()) >= 3)
    os.killpg(pid_of(folder), signal.SIGKILL)
    until(lambda: folder.status().state == "died")
    before = site.trials
    assert len(site.judged()) - before <= 1, "at most the trial in flight is lost"
    with pytest.raises(UsageError, match="died"):
        control.stop(folder)
    control.resume(folder)
    assert ended(folder).state == "finished"
    # One trial may be stored whose count was not, if the kill came between the two.
    assert site.trials in (8, 9)
    site.check()


def test_what_died_may_be_cancelled(site: Site) -> None:
    folder = site.start()
    until(lambda: site.trials >= 1)
    os.killpg(pid_of(folder), signal.SIGKILL)
    until(lambda: folder.status().state == "died")
    assert control.cancel(folder).state == "cancelled"
    assert not [o for o in Project.open(site.path).orders() if o.owner]


def test_two_workers_share_a_budget_and_judge_nothing_twice(site: Site) -> None:
    folder = site.start(trials=15, workers=2)
    status = ended(folder)
    assert status.state == "finished" and [w.trials for w in status.workers] == [8, 7]
    assert site.trials == len(site.judged()) == len(set(site.judged())) == 15
    site.check()


def test_two_runs_on_one_project(site: Site) -> None:
    runs = [site.start(trials=8), site.start(trials=8)]
    assert [ended(r).state for r in runs] == ["finished", "finished"]
    assert [r.worker(0).trials for r in runs] == [8, 8]
    assert site.trials == len(set(site.judged())) == len(site.judged()) == 16
    site.check()
    assert [r.id for r in runs_of([site.path])] == [r.id for r in runs]


def test_one_dead_worker_of_two_is_restarted_alone(site: Site) -> None:
    folder = site.start(workers=2)
    until(lambda: all(folder.worker(i).trials for i in (0, 1)))
    first, second = pid_of(folder, 0), pid_of(folder, 1)
    os.killpg(second, signal.SIGKILL)
    until(lambda: folder.status().live == (0,))
    assert folder.status().state == "running"
    control.resume(folder)
    assert folder.status().live == (0, 1)
    assert pid_of(folder, 0) == first and pid_of(folder, 1) != second


def test_a_run_that_failed_says_why(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_ERROR", "no compiler was found")
    folder = site.start()
    status = ended(folder)
    (worker,) = status.workers
    assert (status.state, worker.error, worker.hint) == ("failed", "no compiler was found", "install it")
    until(lambda: "EnvironmentMissing" in folder.log(0).read_text())  # the state is told before the log
    monkeypatch.delenv("FAKE_ERROR")
    control.resume(folder)
    until(lambda: site.trials >= 1)


def test_nobody_works_twice_as_one_worker(site: Site) -> None:
    folder = site.start()
    until(lambda: site.trials >= 1)
    owner = folder.worker(0).owner
    second = subprocess.run(
        [*control.worker_command(), str(folder.path), "0"], stdin=subprocess.DEVNULL, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert second.returncode == 1 and "works already" in second.stderr
    assert folder.worker(0).owner == owner and folder.status().live == (0,)


def test_runs_are_found_by_a_prefix_or_as_the_latest(site: Site, tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="there is no run"):
        find_run([site.path], "latest")
    runs = [site.start(trials=1), site.start(trials=1)]
    for run in runs:
        ended(run)
    assert find_run([site.path], "latest").id == runs[1].id
    assert find_run([site.path], runs[0].id[:5]).id == runs[0].id
    with pytest.raises(NotFound, match="no run"):
        find_run([site.path], "zz")
    (site.path / "runs" / runs[0].id / "run.json").write_text("{")
    assert [r.id for r in runs_of([site.path])] == [runs[1].id]
