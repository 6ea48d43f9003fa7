"""A project, and runs on it whose processes search with fakes (`fake_worker`)."""

from __future__ import annotations

import sqlite3
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from kernelforge.capture.types import TensorRef
from kernelforge.cards.types import Extent, OperatorCard, SizePoint, TensorPattern, Variant, VariantRecord
from kernelforge.errors import UsageError
from kernelforge.search.types import Budget
from kernelforge.store.project import Project
from kernelforge.supervisor import control
from kernelforge.supervisor.folder import RunFolder, runs_of
from kernelforge.supervisor.types import Run, RunStatus

FAKE_WORKER = Path(__file__).with_name("fake_worker.py")
PATIENCE_S = 60.0


def _card(operator: str, share: float) -> OperatorCard:
    tensor = TensorPattern(shape=(Extent(8),), stride=(Extent(1),), dtype="float32")
    variant = Variant(operator=operator, arguments=(("input", TensorRef(0)),), tensors=(tensor,), outputs=(tensor,))
    point = SizePoint(dims={}, scalars={}, calls=3, eager_us=2.5)
    record = VariantRecord(variant=variant, points=(point,), share=share)
    return OperatorCard(operator=operator, model="tiny", device="cpu", variants=(record,))


@dataclass(frozen=True)
class Site:
    """A project and what tests do with its runs."""

    path: Path

    def start(
        self, *, trials: int | None = None, seconds: float | None = None, usd: float | None = None, workers: int = 1
    ) -> RunFolder:
        budget = Budget(trials=trials, seconds=seconds, usd=usd)
        return control.start(self.path, Run(id="", created=time.time(), budget=budget, devices=("",) * workers))

    def sources(self) -> dict[str, list[str]]:
        """By variant id, in the order of their numbers, which have no gap."""
        project, sources = Project.open(self.path), {}
        for record in (r for card in project.cards() for r in card.variants):
            nodes = project.nodes(record.variant.id)
            assert [n.number for n in nodes] == list(range(1, len(nodes) + 1))
            sources[record.variant.id] = [n.candidate.source for n in nodes]
        return sources

    def paid(self) -> float:
        """US dollars that were paid for what was proposed, judged or not."""
        orders = Project.open(self.path).orders(closed=True)
        return sum(o.candidate.cost_usd or 0.0 for o in orders if o.candidate is not None)

    @property
    def trials(self) -> int:
        return sum(map(len, self.sources().values()))

    def judged(self) -> list[str]:
        """What judges were given, one line each."""
        file = self.path / "judged.txt"
        return file.read_text().splitlines() if file.exists() else []

    def check(self) -> None:
        """What must hold whatever was killed: an intact file, no number left out, no trial twice, none lost."""
        with sqlite3.connect(self.path / "nodes.db") as connection:
            assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
            assert connection.execute("PRAGMA foreign_key_check").fetchall() == []
        connection.close()
        # A worker that lives goes on meanwhile, so what follows from the other is read after it.
        counted = sum(w.trials for run in runs_of([self.path]) for w in run.status().workers)
        project = Project.open(self.path)
        before, sources = _nodes_of_orders(project), self.sources()
        nodes = [n.id for key in sources for n in project.nodes(key)]
        after = _nodes_of_orders(project)
        assert all(len(set(texts)) == len(texts) for texts in sources.values()), "a trial twice"
        assert len(set(after)) == len(after), "a trial of two orders"
        assert set(before) <= set(nodes) <= set(after), "a trial without its order, or an order without its trial"
        assert counted <= len(nodes), "a trial that was finished is lost"


def _nodes_of_orders(project: Project) -> list[str]:
    return [o.node for o in project.orders(closed=True) if o.state == "done"]


def until(condition: Callable[[], object], what: str = "") -> None:
    """Wait until it holds."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, what or "waited in vain"
        time.sleep(0.02)


def ended(folder: RunFolder) -> RunStatus:
    """The run once it has ended by itself."""
    until(lambda: not folder.status().live, f"run {folder.id} does not end")
    return folder.status()


def make_site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    """A project whose runs use the fake worker; what still runs at the end is cancelled."""
    monkeypatch.setattr(control, "worker_command", lambda: (sys.executable, str(FAKE_WORKER)))
    path = tmp_path / "tiny.kforge"
    cards = (_card("relu", 0.3), _card("add", 0.7))
    Project.create(path, model="tiny", device="cpu", cards=cards, capture_info={"coverage": 1.0})
    yield Site(path)
    for folder in runs_of([path]):
        if folder.status().live:
            try:
                control.cancel(folder)
            except UsageError:
                continue  # it has just ended


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    yield from make_site(tmp_path, monkeypatch)
