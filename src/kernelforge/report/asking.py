"""Work orders and the verdicts on what was written for them, as plain data and as tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kernelforge.benchmark.types import Interval
from kernelforge.digest import Json
from kernelforge.report.grid import Cell, Column, Grid, Record, Tone
from kernelforge.report.rows import finite, interval_json
from kernelforge.report.units import format_interval, format_speedup, format_us
from kernelforge.wording import plural, speedup_words


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedRow:
    """One work order.

    Attributes:
        parent: number of the trial that is to be revised; 0 for a start from scratch. reason: of the strategy.
        path: of its folder. write: name of the file that is wanted in it.
    """

    order: str
    label: str
    parent: int
    reason: str
    path: str
    write: str

    def to_json(self) -> dict[str, Json]:
        return {
            "order": self.order, "label": self.label, "parent": self.parent, "reason": self.reason, "path": self.path,
            "write": self.write,
        }  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class AskReport:
    """What was asked for.

    Attributes:
        parked: variant id -> why it gets no order.
    """

    path: str
    rows: tuple[AskedRow, ...]
    parked: Mapping[str, str]

    def to_json(self) -> dict[str, Json]:
        return {"path": self.path, "orders": [r.to_json() for r in self.rows], "parked": dict(self.parked)}


@dataclass(frozen=True, slots=True, kw_only=True)
class ToldRow:
    """One order's folder after `tell`.

    Attributes:
        number, outcome: of its trial; 0 and "" if none was made, and then `why`.
        candidate_us, floor_us: of an accepted one, microseconds a call. first: line of the explanation.
    """

    path: str
    label: str
    number: int = 0
    outcome: str = ""
    speedup: Interval | None = None
    candidate_us: float | None = None
    floor_us: float | None = None
    first: str = ""
    why: str = ""

    @property
    def line(self) -> str:
        """For the progress."""
        if not self.outcome:
            return f"{self.label}  {self.why}"
        said = self.first
        if self.speedup is not None:
            said = speedup_words(self.speedup.median, self.speedup.low, self.speedup.high)
        return f"{self.label}  #{self.number}  {said}"

    def to_json(self) -> dict[str, Json]:
        return {
            "path": self.path, "label": self.label, "number": self.number, "outcome": self.outcome,
            "speedup": interval_json(self.speedup), "candidate_us": finite(self.candidate_us),
            "floor_us": finite(self.floor_us), "first": self.first, "why": self.why,
        }  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class TellReport:
    """What `tell` found. left: kernels that were not judged because it was stopped."""

    rows: tuple[ToldRow, ...]
    left: int = 0

    def to_json(self) -> dict[str, Json]:
        return {"verdicts": [r.to_json() for r in self.rows], "left": self.left}


def ask_grid(report: AskReport) -> Grid:
    """The orders as a table."""
    records = tuple(
        Record((Cell(r.path), Cell(r.write), Cell(f"#{r.parent}" if r.parent else "scratch"), Cell(r.reason, "dim")))
        for r in report.rows
    )
    columns = (
        Column(title="order"), Column(title="write"), Column(title="revise"), Column(title="why", flexible=True)
    )  # fmt: skip
    footer = () if report.rows else ("no variant has use for a kernel now; `kforge forge --plan` says why",)
    return Grid(columns=columns, records=records, footer=footer)


def tell_grid(report: TellReport) -> Grid:
    """The verdicts as a table."""
    columns = (
        Column(title="order"), Column(title="trial", align="right"), Column(title="outcome"),
        Column(title="kernel", align="right"), Column(title="floor", align="right"),
        Column(title="speed-up", align="right"), Column(title="95% interval", align="right"),
        Column(title="verdict", flexible=True),
    )  # fmt: skip
    footer = [f"{plural(report.left, 'kernel')} not judged: it was stopped"] if report.left else []
    return Grid(columns=columns, records=tuple(map(_told_record, report.rows)), footer=tuple(footer))


def _told_record(row: ToldRow) -> Record:
    tone: Tone = "good" if row.outcome == "accepted" else "bad" if row.outcome else "dim"
    speedup = row.speedup
    return Record((
        Cell(row.path), Cell(f"#{row.number}" if row.number else "-"),
        Cell(row.outcome.replace("_", " ") or "not judged", tone), Cell(format_us(row.candidate_us)),
        Cell(format_us(row.floor_us)), Cell(format_speedup(None if speedup is None else speedup.median)),
        Cell("-" if speedup is None else format_interval(speedup.low, speedup.high)), Cell(row.why or row.first, "dim"),
    ))  # fmt: skip
