"""Work orders and the verdicts on what was written for them, as plain data and as tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kernelforge.audit.types import TORCH_TIER, AuditKind
from kernelforge.benchmark.types import Interval
from kernelforge.digest import Json
from kernelforge.report.grid import Cell, Column, Grid, Record, Tone
from kernelforge.report.judgement import EvalReport
from kernelforge.report.rows import OperatorRow, finite, interval_json
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
    """One order's folder after `tell`, or one file after `add`.

    Attributes:
        number, outcome: of its trial; 0 and "" if none was made, and then `why`.
        candidate_us, floor_us: of an accepted one, microseconds a call. first: line of the explanation.
        reason: typed, of a failed one. audit: the label of an accepted one.
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
    reason: str = ""
    audit: str = ""

    @property
    def line(self) -> str:
        """For the progress."""
        if not self.outcome:
            return f"{self.label}  {self.why}"
        said = self.why or self.first
        if self.speedup is not None and not self.why:
            said = speedup_words(self.speedup.median, self.speedup.low, self.speedup.high)
            said += f", {TORCH_TIER}" if self.audit == AuditKind.TORCH else ""
        return f"{self.label}  #{self.number}  {said}"

    def to_json(self) -> dict[str, Json]:
        return {
            "path": self.path, "label": self.label, "number": self.number, "outcome": self.outcome,
            "speedup": interval_json(self.speedup), "candidate_us": finite(self.candidate_us),
            "floor_us": finite(self.floor_us), "first": self.first, "why": self.why,
            "reason": self.reason, "audit": self.audit,
        }  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class TellReport:
    """What `tell` found. left: kernels that were not judged because it was stopped."""

    rows: tuple[ToldRow, ...]
    left: int = 0

    def to_json(self) -> dict[str, Json]:
        return {"verdicts": [r.to_json() for r in self.rows], "left": self.left}


@dataclass(frozen=True, slots=True, kw_only=True)
class ParentKernel:
    """The kernel that an order wants revised. number: of its trial. diagnosis: what the judge says of it."""

    node: str
    number: int
    source: str
    diagnosis: str

    def to_json(self) -> dict[str, Json]:
        return {"node": self.node, "number": self.number, "source": self.source, "diagnosis": self.diagnosis}


@dataclass(frozen=True, slots=True, kw_only=True)
class PastKernel:
    """One kernel of an order's history. outcome: as in `EvalReport`, or "pending". number: 0 while it is pending."""

    number: int
    outcome: str
    speedup: float | None
    notes: str

    def to_json(self) -> dict[str, Json]:
        return {
            "number": self.number, "outcome": self.outcome, "speedup": finite(self.speedup), "notes": self.notes,
        }  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkOrder:
    """A work order with all that its author must know.

    Attributes:
        order: its id; "" for a look at a variant without one. state: a `search.orders.OrderState`, or "".
        label: of the variant. model: that was captured. backend: "cpp" or "cuda".
        reason: why this parent, of the strategy. write: name of the file that is wanted.
        prompt: the whole text. prelude: the C declarations that are put before the file.
        parent: None for a start from scratch.
        asked, expires: POSIX seconds; 0 without an order.
    """

    order: str
    state: str
    variant: str
    label: str
    model: str
    backend: str
    reason: str
    write: str
    prompt: str
    prelude: str
    parent: ParentKernel | None
    history: tuple[PastKernel, ...]
    asked: float
    expires: float

    def to_json(self) -> dict[str, Json]:
        return {
            "order": self.order, "state": self.state, "variant": self.variant, "label": self.label,
            "model": self.model, "backend": self.backend, "reason": self.reason, "write": self.write,
            "prompt": self.prompt, "prelude": self.prelude,
            "parent": None if self.parent is None else self.parent.to_json(),
            "history": [past.to_json() for past in self.history], "asked": self.asked, "expires": self.expires,
        }  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class NextOrder:
    """The next work order; None if no variant has use for one. parked: label -> why a variant gets none."""

    order: WorkOrder | None
    parked: Mapping[str, str]

    def to_json(self) -> dict[str, Json]:
        return {"order": None if self.order is None else self.order.to_json(), "parked": dict(self.parked)}


@dataclass(frozen=True, slots=True, kw_only=True)
class VerdictReport:
    """What the judge says of one kernel, or why it says nothing yet.

    Attributes:
        label: of the variant. write: name of the kernel's file.
        order: id, or "" for a trial of another origin. state: of the order, "done" for a trial.
        judged: None while there is no verdict, and then `why`.
        source, notes, model: of the kernel, "" if there is none yet.
    """

    label: str
    variant: str
    write: str
    order: str = ""
    state: str = "done"
    judged: EvalReport | None = None
    source: str = ""
    notes: str = ""
    model: str = ""
    why: str = ""

    @property
    def title(self) -> str:
        """Variant, trial and outcome in a line."""
        if self.judged is None:
            return f"{self.label}: {self.why}"
        return f"{self.label}, trial #{self.judged.number}: {self.judged.outcome.replace('_', ' ')}"

    @property
    def diagnosis(self) -> str:
        """What came of it and why, and what to look at."""
        return "" if self.judged is None else "\n".join(self.judged.explanation)

    @property
    def advice(self) -> str:
        """What its author may do next, in the first half of a sentence."""
        accepted = self.judged is not None and self.judged.outcome == "accepted"
        return f"{'To go on from it' if accepted else 'To mend it'}, change {self.write}"

    def to_json(self) -> dict[str, Json]:
        return {
            "label": self.label, "variant": self.variant, "order": self.order, "state": self.state,
            "title": self.title, "diagnosis": self.diagnosis, "source": self.source, "notes": self.notes,
            "model": self.model, "why": self.why,
            "judged": None if self.judged is None else self.judged.to_json(),
        }  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenOrder:
    """An order that has no verdict yet. state: a `search.orders.OrderState`. asked, expires: POSIX seconds."""

    order: str
    label: str
    state: str
    reason: str
    asked: float
    expires: float

    def to_json(self) -> dict[str, Json]:
        return {
            "order": self.order, "label": self.label, "state": self.state, "reason": self.reason, "asked": self.asked,
            "expires": self.expires,
        }  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusReport:
    """How a project stands: its variants with the best kernels, and the orders under way."""

    project: str
    model: str
    device: str
    rows: tuple[OperatorRow, ...]
    orders: tuple[OpenOrder, ...]

    @property
    def trials(self) -> int:
        return sum(row.trials for row in self.rows)

    def to_json(self) -> dict[str, Json]:
        return {
            "project": self.project, "model": self.model, "device": self.device, "trials": self.trials,
            "rows": [row.to_json() for row in self.rows], "orders": [order.to_json() for order in self.orders],
        }  # fmt: skip


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


def add_grid(report: TellReport) -> Grid:
    """What came of files that were added, as a table."""
    columns = (
        Column(title="file"), Column(title="variant"), Column(title="trial", align="right"), Column(title="outcome"),
        Column(title="kernel", align="right"), Column(title="speed-up", align="right"),
        Column(title="verdict", flexible=True),
    )  # fmt: skip
    footer = [TORCH_TIER] if any(row.audit == AuditKind.TORCH for row in report.rows) else []
    if report.left:
        footer.append(f"{plural(report.left, 'kernel')} not judged: it was stopped; the next search judges them first")
    return Grid(columns=columns, records=tuple(map(_added_record, report.rows)), footer=tuple(footer))


def _added_record(row: ToldRow) -> Record:
    outcome = row.outcome.replace("_", " ") or "not judged"
    tone: Tone = "good" if row.outcome == "accepted" else "bad" if row.outcome else "dim"
    of_torch = row.audit == AuditKind.TORCH
    return Record((
        Cell(row.path), Cell(row.label), Cell(f"#{row.number}" if row.number else "-"),
        Cell(f"{outcome}, torch ABI" if of_torch else outcome, tone), Cell(format_us(row.candidate_us)),
        Cell(format_speedup(None if row.speedup is None else row.speedup.median)), Cell(row.why or row.first, "dim"),
    ))  # fmt: skip


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


def open_orders_grid(orders: Sequence[OpenOrder]) -> Grid:
    """The orders under way as a table."""
    columns = (
        Column(title="open order"), Column(title="variant"), Column(title="state"), Column(title="why", flexible=True)
    )  # fmt: skip
    records = tuple(
        Record((Cell(o.order), Cell(o.label), Cell(o.state), Cell(o.reason, "dim"))) for o in orders
    )  # fmt: skip
    return Grid(columns=columns, records=records, footer=() if orders else ("no open orders",))
