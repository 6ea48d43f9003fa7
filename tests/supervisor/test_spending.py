"""What a run spends, over all its processes, however they end."""

from __future__ import annotations

import os
import signal
import time

import pytest
from tests.supervisor.conftest import Site, ended, until

from kernelforge.errors import NotFound, UsageError
from kernelforge.generate.types import Candidate
from kernelforge.search.orders import Order, OrderState
from kernelforge.search.owners import pid_of
from kernelforge.store.project import Project
from kernelforge.supervisor import control
from kernelforge.supervisor.folder import RunFolder
from kernelforge.supervisor.spending import settled
from kernelforge.supervisor.types import WorkerState


def kill(folder: RunFolder) -> None:
    pid = pid_of(folder.worker(0).owner)
    assert pid is not None
    os.killpg(pid, signal.SIGKILL)
    until(lambda: folder.status().state == "died")


@pytest.mark.parametrize("end", [control.cancel, kill])
def test_a_budget_is_not_spent_twice(end: object, site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_USD", "1.0")
    monkeypatch.setenv("FAKE_JUDGE_S", "0.05")
    folder = site.start(usd=10.0)
    for paid in (3, 6):
        until(lambda paid=paid: site.paid() >= paid)  # type: ignore[misc]
        assert callable(end)
        end(folder)
        if end is control.cancel:
            assert folder.worker(0).usd == site.paid() and folder.worker(0).tokens == 100 * site.paid()
            assert folder.worker(0).unsettled == ()
        control.resume(folder)
    status = ended(folder)
    (worker,) = status.workers
    assert (status.state, worker.reason) == ("finished", "usd")
    assert site.paid() == worker.usd == 10.0 and worker.tokens == 1000
    with pytest.raises(UsageError, match="nothing left to do; it ended by: usd"):
        control.resume(folder)
    site.check()


def test_what_is_spent_is_seen_while_it_is_spent(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_USD", "0.5")
    folder = site.start(trials=200)
    until(lambda: (folder.worker(0).usd or 0.0) >= 1.0)
    worker = folder.worker(0)
    assert worker.stage == "running" and worker.tokens == 100 * (worker.usd or 0.0)


def test_a_search_that_failed_had_its_cost(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_USD", "1.0")
    monkeypatch.setenv("FAKE_BROKEN_AT", "2")
    folder = site.start(usd=10.0)
    assert ended(folder).state == "failed"
    assert folder.worker(0).usd == site.paid() > 0


def test_a_killed_run_with_nothing_left_does_not_go_on(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_USD", "1.0")
    monkeypatch.setenv("FAKE_JUDGE_S", "60")
    folder = site.start(usd=2.0)
    until(lambda: site.paid() == 2.0)
    kill(folder)
    with pytest.raises(UsageError, match="nothing left to do; it ended by: its budget is spent"):
        control.resume(folder)
    assert folder.worker(0).usd == 2.0


def test_an_unknown_cost_is_not_nothing(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_USD", "unknown")
    free = site.start(trials=2)
    assert ended(free).state == "finished" and free.worker(0).usd is None
    limited = site.start(usd=5.0)
    assert ended(limited).state == "failed" and limited.worker(0).usd is None
    with pytest.raises(UsageError, match="it is not known what was spent"):
        control.resume(limited)


def test_what_others_deliver_is_not_paid_by_the_run(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_USD", "1.0")
    project = Project.open(site.path)
    variant_id = project.record("relu").variant.id
    theirs = Candidate(variant_id=variant_id, source="k_ 1000", backend="cpp", generator="agent")
    order = Order(id="1" * 32, variant_id=variant_id, state="delivered", candidate=theirs, created=time.time())
    project.change_orders(lambda _: [order])
    folder = site.start(usd=3.0)
    assert ended(folder).state == "finished"
    assert project.order("1" * 32).state == "done"
    assert folder.worker(0).usd == 3.0 == site.paid() and folder.worker(0).trials == 4


def test_only_what_is_under_way_stays_unsettled() -> None:
    def made(cost: float | None) -> Candidate:
        return Candidate(
            variant_id="v", source="x", backend="cpp", generator="g", tokens_in=1, tokens_out=1, cost_usd=cost
        )

    def order(state: OrderState, owner: str = "", candidate: Candidate | None = None) -> Order:
        return Order(id="", variant_id="v", state=state, owner=owner, candidate=candidate)

    orders = {
        "asked": order("asked", "me"), "another's": order("asked", "other"), "failed": order("failed"),
        "judging": order("judging", "me", made(2.0)), "done": order("done", "", made(0.5)),
        "dropped": order("failed", "", made(0.25)), "untold": order("delivered", "", made(None)),
    }  # fmt: skip

    def find(order_id: str) -> Order:
        if order_id not in orders:
            raise NotFound("no such order")
        return orders[order_id]

    worker = WorkerState(owner="me", tokens=10, usd=1.0, unsettled=(*list(orders)[:-1], "lost"))
    after = settled(worker, find, lambda _: ())
    assert (after.tokens, after.usd, after.unsettled) == (16, 3.75, ("asked",))
    untold = settled(WorkerState(owner="me", usd=1.0, unsettled=("untold",)), find, lambda _: ())
    assert (untold.tokens, untold.usd, untold.unsettled) == (2, None, ())
