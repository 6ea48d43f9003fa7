"""`kill -9` of searches at random moments, again and again; `make kill-test` does it 200 times."""

from __future__ import annotations

import os
import random
import signal
import time

import pytest
from tests.supervisor.conftest import Site, ended, until

from kernelforge.store.project import Project
from kernelforge.supervisor import control
from kernelforge.supervisor.folder import RunFolder

KILLS = int(os.environ.get("KFORGE_KILLS", "8"))
SEED = int(os.environ.get("KFORGE_SEED", "7"))


@pytest.mark.slow
@pytest.mark.timeout(120 + 15 * KILLS)
def test_whenever_a_search_is_killed_nothing_is_lost_or_doubled(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two workers both are killed, or one; the next processes judge what was delivered."""
    monkeypatch.setenv("FAKE_JUDGE_S", "0.01")
    chance = random.Random(SEED)
    folder = site.start(workers=2)
    kills, killed, inherited = 0, 0, 0
    while kills < KILLS:
        # From before the process has read anything to the middle of its work.
        time.sleep(chance.uniform(0.0, 3.0))
        victims = (0, 1) if chance.random() < 0.5 else (chance.randrange(2),)
        waiting = _kill(folder, victims)
        kills, killed = kills + 1, killed + len(victims)
        site.check()
        if len(victims) == 2:
            assert folder.status().state == "died"
            control.resume(folder)
            if waiting:
                _await_judgement(site, waiting)
                inherited += len(waiting)
        else:
            assert len(folder.status().live) == 1
            control.resume(folder)
    control.stop(folder)
    assert ended(folder).state == "stopped"
    site.check()
    assert site.trials > 0
    lost = len(site.judged()) - site.trials
    assert lost <= killed, "a worker lost more than the trial in flight"
    open_orders = [o for o in Project.open(site.path).orders() if o.state == "judging"]
    assert not open_orders, "who stops gives back what it held"
    print(
        f"{kills} kills of {killed} workers: {site.trials} trials stored, {lost} in flight lost, "
        f"{inherited} candidates judged by the next process"
    )


def _kill(folder: RunFolder, victims: tuple[int, ...]) -> set[str]:
    """Kill workers with their groups; orders that nobody works on now, with their candidates, if all were killed."""
    owners = [folder.worker(i).owner for i in victims]
    for owner in owners:
        os.killpg(int(owner.split(":")[1]), signal.SIGKILL)
    until(lambda: not set(victims) & set(folder.status().live))
    if len(victims) < 2:
        return set()
    return {o.id for o in Project.open(folder.project).orders() if o.state in ("delivered", "judging")}


def _await_judgement(site: Site, orders: set[str]) -> None:
    project = Project.open(site.path)
    until(lambda: all(project.order(i).state == "done" for i in orders), "what was delivered is not judged")
