"""Detached runs as plain data and as a table. Owns `RunRow`."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kernelforge.digest import Json
from kernelforge.report.grid import Cell, Column, Grid, Record, Tone
from kernelforge.report.rows import finite
from kernelforge.report.units import UNKNOWN, format_duration
from kernelforge.wording import plural

if TYPE_CHECKING:
    from kernelforge.search.types import Budget
    from kernelforge.supervisor.types import RunStatus

TONES: dict[str, Tone] = {"running": "good", "starting": "good", "died": "bad", "failed": "bad", "unknown": "bad"}


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRow:
    """A run.

    Attributes:
        state: a `supervisor.types.State`. trials, seconds: of all workers, of the one that worked longest.
        expected, eta_s: trials and seconds that are to come to; None if unknown.
        begun: POSIX seconds. workers: how many, and the pids of those that live.
        asked: operators and budget in words. reason: why it ended, or what is wrong; "" while it works.
    """

    id: str
    project: str
    state: str
    trials: int
    expected: int | None
    seconds: float
    eta_s: float | None
    begun: float
    workers: int
    pids: tuple[int, ...]
    asked: str
    reason: str

    def to_json(self) -> dict[str, Json]:
        return {
            "id": self.id, "project": self.project, "state": self.state, "trials": self.trials,
            "expected": self.expected, "seconds": finite(self.seconds), "eta_s": finite(self.eta_s),
            "begun": self.begun, "workers": self.workers, "pids": list(self.pids), "asked": self.asked,
            "reason": self.reason,
        }  # fmt: skip


def run_row(status: RunStatus) -> RunRow:
    """A run as it stands."""
    workers, run = status.workers, status.run
    expected = [w.expected for w in workers]
    etas = [workers[i].eta_s for i in status.live]
    known = [e for e in etas if e is not None]
    operators = " ".join(run.operators) if run.operators else "all"
    return RunRow(
        id=run.id, project=status.project, state=status.state, trials=sum(w.trials for w in workers),
        expected=run.budget.trials or (None if None in expected else sum(e or 0 for e in expected) or None),
        seconds=max(w.seconds for w in workers), eta_s=max(known, default=None), begun=run.created,
        workers=len(workers), pids=tuple(int(workers[i].owner.split(":")[1]) for i in status.live),
        asked=f"{operators}, {budget_words(run.budget)}", reason=_reason(status),
    )  # fmt: skip


def _reason(status: RunStatus) -> str:
    if status.state == "died":
        return "its process ended without a word"
    errors = [w.error for w in status.workers if w.error]
    if errors:
        return errors[0]
    return "" if status.live else ", ".join(sorted({w.reason for w in status.workers if w.reason}))


def budget_words(budget: Budget) -> str:
    """What limits a search: "40 trials, 3m 00s"."""
    words = [
        plural(budget.trials, "trial") if budget.trials is not None else "",
        format_duration(budget.seconds) if budget.seconds is not None else "",
        f"{budget.tokens:,} tokens" if budget.tokens is not None else "",
        f"${budget.usd:.2f}" if budget.usd is not None else "",
    ]
    return ", ".join(w for w in words if w) or "no limit"


def runs_grid(rows: Sequence[RunRow], *, now: float | None = None) -> Grid:
    """Runs as a table, one a line; with their projects if there are several."""
    many = len({r.project for r in rows}) > 1
    columns = [
        Column(title="run"), *([Column(title="project")] if many else []), Column(title="state"),
        Column(title="trials", align="right"), Column(title="worked", align="right"),
        Column(title="left", align="right"), Column(title="begun"), Column(title="asked for"),
        Column(title="ended by", flexible=True),
    ]  # fmt: skip
    records = []
    for row in rows:
        project = [Cell(row.project.rsplit("/", maxsplit=1)[-1])] if many else []
        left = UNKNOWN if row.eta_s is None or not row.pids else format_duration(row.eta_s)
        trials = f"{row.trials}/{row.expected}" if row.expected else str(row.trials)
        records.append(Record((
            Cell(row.id), *project, Cell(row.state, TONES.get(row.state, "")), Cell(trials),
            Cell(format_duration(row.seconds)), Cell(left),
            Cell(f"{format_duration(max(0.0, (now or time.time()) - row.begun))} ago", "dim"), Cell(row.asked),
            Cell(row.reason),
        )))  # fmt: skip
    return Grid(columns=tuple(columns), records=tuple(records), footer=(plural(len(rows), "run"),))
