"""The plan of a search for people: which variant gets how many trials and why, and what the model may gain."""

from __future__ import annotations

from dataclasses import dataclass

from kernelforge.digest import Json
from kernelforge.report.grid import Cell, Column, Grid, Record
from kernelforge.report.rows import finite
from kernelforge.report.tables import facts_grid, short_label
from kernelforge.report.units import format_duration, format_share, format_speedup, format_us
from kernelforge.search.plan import Plan, PlannedVariant
from kernelforge.search.types import Budget
from kernelforge.wording import plural

UNKNOWN = "unknown"
WIDE_COLUMNS = 120
"""From this width on, why a variant gets no trials has a column of its own."""

MOST_NAMED = 4
"""So many variants without a floor are named; the others are counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRow:
    """One variant of a plan.

    Attributes:
        share: of the model's captured time, in [0, 1].
        eager_us, best_us, floor_us: a call, microseconds; eager as the judge timed it, before any such trial as
            captured.
        headroom: fraction of eager's time between the faster of eager and best, and the floor; None without a floor.
        trials: made so far. allotted: those that this budget gives. parked: why none, or "".
    """

    variant: str
    label: str
    operator: str
    share: float
    eager_us: float
    best_us: float | None
    floor_us: float | None
    headroom: float | None
    trials: int
    allotted: int
    parked: str

    def to_json(self) -> dict[str, Json]:
        return {
            "variant": self.variant, "label": self.label, "operator": self.operator, "share": finite(self.share),
            "eager_us": finite(self.eager_us), "best_us": finite(self.best_us), "floor_us": finite(self.floor_us),
            "headroom": finite(self.headroom), "trials": self.trials, "allotted": self.allotted,
            "parked": self.parked,
        }  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanReport:
    """What a search would do. The speed-ups are of the whole model over eager; see `search.plan.Plan`.

    Attributes:
        unknown_floors: share of the captured time of the variants in `missing_floors`.
        missing_floors: labels of the variants that may be forged and whose floor is unknown, largest share first.
        machine_known: this machine's memory has been measured.
        waiting: delivered candidates that are judged first.
        limit: trials that the budget allows for, None if no limit can be told in trials. limit_by: which limit it is.
        unknown_limits: limits of which that is not known.
    """

    rows: tuple[PlanRow, ...]
    policy: str
    budget: Budget
    limit: int | None
    limit_by: str
    unknown_limits: tuple[str, ...]
    coverage: float
    now: float
    estimate: float | None
    bound: float | None
    bound_all: float | None
    unknown_floors: float
    missing_floors: tuple[str, ...] = ()
    machine_known: bool = True
    waiting: int = 0

    @property
    def allotted(self) -> int:
        return sum(r.allotted for r in self.rows)

    def to_json(self) -> dict[str, Json]:
        budget = self.budget
        return {
            "policy": self.policy,
            "budget": {
                "trials": budget.trials, "seconds": finite(budget.seconds), "tokens": budget.tokens,
                "usd": finite(budget.usd),
            },
            "limit": self.limit, "limit_by": self.limit_by, "unknown_limits": list(self.unknown_limits),
            "allotted": self.allotted, "coverage": finite(self.coverage),
            "speedup": {
                "now": finite(self.now), "estimate": finite(self.estimate), "bound": finite(self.bound),
                "bound_all": finite(self.bound_all),
            },
            "unknown_floors": finite(self.unknown_floors), "missing_floors": list(self.missing_floors),
            "machine_known": self.machine_known, "waiting": self.waiting, "rows": [r.to_json() for r in self.rows],
        }  # fmt: skip


def plan_report(plan: Plan, budget: Budget, *, policy: str, machine_known: bool, waiting: int = 0) -> PlanReport:
    """A plan as plain data, largest share first."""
    ordered = sorted(plan.variants, key=lambda v: (-v.state.share, v.record.variant.id))
    return PlanReport(
        rows=tuple(_row(v) for v in ordered), policy=policy, budget=budget, limit=plan.allowed.trials,
        limit_by=plan.allowed.by, unknown_limits=plan.allowed.unknown, coverage=plan.coverage, now=plan.now,
        estimate=plan.estimate, bound=plan.bound, bound_all=plan.bound_all, unknown_floors=plan.unknown_floors,
        missing_floors=tuple(
            v.record.variant.label
            for v in ordered
            if not v.record.forgeable and v.floor_us is None and v.state.share > 0
        ),
        machine_known=machine_known, waiting=waiting,
    )  # fmt: skip


def plan_grids(report: PlanReport, *, width: int | None = None, least_share: float = 0.0) -> list[Grid]:
    """The plan as tables: the variants, then the whole model.

    Args:
        width: of the terminal; None means that there is no limit (a pipe).
        least_share: variants below it that get no trial are counted instead of listed.
    """
    shown = [r for r in report.rows if r.share >= least_share or r.allotted]
    wide = width is None or width >= WIDE_COLUMNS
    columns = [Column(title="variant"), *(Column(title=t, align="right") for t in (_WIDE if wide else _NARROW))]
    if wide:
        columns.append(Column(title="why no trials", flexible=True))
    footer = [
        _allotted_line(report),
        *_waiting_lines(report),
        *(_unknown_line(report, name) for name in report.unknown_limits),
    ]
    if any(r.eager_us for r in shown):
        footer.append("eager: a call as timed beside the best trial, before any as captured; headroom: of that time")
    if len(shown) < len(report.rows):
        footer.append(f"and {len(report.rows) - len(shown)} more below {format_share(least_share)} without trials")
    record = _wide_record if wide else _narrow_record
    variants = Grid(columns=tuple(columns), records=tuple(record(r) for r in shown), footer=tuple(footer))
    return [variants, _model_grid(report)]


_WIDE = ("share", "eager", "best", "floor", "headroom", "trials", "planned")
_NARROW = ("share", "eager", "floor", "headroom", "planned")


def _wide_record(row: PlanRow) -> Record:
    return Record((
        Cell(row.label), Cell(format_share(row.share)), Cell(format_us(row.eager_us)), Cell(format_us(row.best_us)),
        _floor_cell(row), _headroom_cell(row), Cell(str(row.trials)), _planned_cell(row), Cell(row.parked, "warn"),
    ))  # fmt: skip


def _narrow_record(row: PlanRow) -> Record:
    parts = [f"{plural(row.trials, 'trial')} so far" if row.trials else ""]
    parts += [f"best {format_us(row.best_us)}" if row.best_us is not None else "", row.parked]
    cells = (
        Cell(short_label(row.label)), Cell(format_share(row.share)), Cell(format_us(row.eager_us)), _floor_cell(row),
        _headroom_cell(row), _planned_cell(row),
    )  # fmt: skip
    return Record(cells, "; ".join(p for p in parts if p))


def _floor_cell(row: PlanRow) -> Cell:
    return Cell(UNKNOWN if row.floor_us is None else format_us(row.floor_us), "dim")


def _headroom_cell(row: PlanRow) -> Cell:
    return Cell(UNKNOWN if row.headroom is None else format_share(row.headroom))


def _planned_cell(row: PlanRow) -> Cell:
    return Cell(f"+{row.allotted}", "good") if row.allotted else Cell("0", "dim")


def _model_grid(report: PlanReport) -> Grid:
    facts = [
        ("now", f"{format_speedup(report.now)} with the best kernels so far"),
        ("estimate", f"{_reached(report.estimate)} after {plural(report.allotted, 'more trial')}"),
        ("bound", f"{_reached(report.bound)} if all that this search can work on reached its floor"),
        ("", f"{_reached(report.bound_all)} if every variant that may be forged did"),
    ]
    lines = [
        f"by Amdahl's law; the {format_share(1 - report.coverage)} of the model's time that was not captured stays",
        "estimate: progress, as likely as the scheduler takes it to be, wins half of the headroom: a rough guess",
    ]
    lines += _missing_lines(report)
    grid = facts_grid(facts, title="Whole model over eager")
    return Grid(
        title=grid.title, columns=grid.columns, records=grid.records, header=False, footer=tuple(lines)
    )  # fmt: skip


def _reached(speedup: float | None) -> str:
    return UNKNOWN if speedup is None else format_speedup(speedup)


def _missing_lines(report: PlanReport) -> list[str]:
    """Which floors a number that is unknown waits for, and what makes them known."""
    if not report.missing_floors:
        return []
    shown = [short_label(label) for label in report.missing_floors[:MOST_NAMED]]
    more = len(report.missing_floors) - len(shown)
    listed = ", ".join([*shown, *([f"{more} more"] if more else [])])
    if report.machine_known:
        how = "a trial that passes all checks measures the floor of its variant"
    else:
        how = "this machine's memory has not been measured yet: any `kforge forge` does so first, also with --trials 1"
    return [f"no floor is known for {listed}: {format_share(report.unknown_floors)} of the captured time", how]


def _allotted_line(report: PlanReport) -> str:
    line = f"planned: {plural(report.allotted, 'trial')} by policy {report.policy}, as if none of them brought progress"
    if report.limit is not None and report.limit_by != "trials":
        line += f"; {_limit(report.budget, report.limit_by)} allows for about {report.limit}"
    if report.limit is None or report.allotted < report.limit:
        line += "; then no variant is left to try"
    return line


def _waiting_lines(report: PlanReport) -> list[str]:
    if not report.waiting:
        return []
    return [f"of them first: {plural(report.waiting, 'candidate')} delivered before and not judged yet"]


def _unknown_line(report: PlanReport, name: str) -> str:
    return f"how many trials {_limit(report.budget, name)} allows for is unknown before the first"


def _limit(budget: Budget, name: str) -> str:
    match name:
        case "seconds":
            return f"a limit of {format_duration(budget.seconds or 0.0)}"
        case "tokens":
            return f"a limit of {budget.tokens:,} tokens"
        case "usd":
            return f"a limit of ${budget.usd:.2f}"
        case _:
            return f"a limit of {plural(budget.trials or 0, 'trial')}"


def _row(variant: PlannedVariant) -> PlanRow:
    record, state = variant.record, variant.state
    return PlanRow(
        variant=record.variant.id, label=record.variant.label, operator=record.variant.operator, share=state.share,
        eager_us=variant.eager_us, best_us=variant.best_us, floor_us=variant.floor_us,
        headroom=state.headroom if variant.floor_us is not None else None, trials=state.trials,
        allotted=variant.allotted, parked=variant.parked,
    )  # fmt: skip
