"""Tables of a package on a machine: where its entries stand, and how a model runs with it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from kernelforge.benchmark.clock import BUSY_SHARE
from kernelforge.benchmark.statistics import median
from kernelforge.report.certified import EntryOutcome, RecertifyReport
from kernelforge.report.grid import Cell, Column, Grid, Record, Tone
from kernelforge.report.package_run import ModeRun, PackageRunReport
from kernelforge.report.rows import DECISION_EAGER, DECISION_USE
from kernelforge.report.tables import facts_grid
from kernelforge.report.units import format_duration, format_interval, format_share, format_speedup
from kernelforge.wording import plural, time_text

_TONES: Mapping[str, Tone] = {
    "certified": "good", "rejected": "bad", "waiting": "warn", "cannot run": "dim", "not judged": "warn",
}  # fmt: skip


def recertify_grids(report: RecertifyReport) -> list[Grid]:
    """Where a package stands on this machine, and each of its entries."""
    states = [entry.state for entry in report.entries]
    counted = ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states))
    facts = [
        ("package", report.path), ("made for", report.made_for), ("here", report.environment),
        ("kernels", counted or "none"),
    ]  # fmt: skip
    if report.record:
        facts.append(("record", report.record))
    if report.seconds >= 1:
        facts.append(("took", format_duration(report.seconds)))
    if report.stopped:
        facts.append(("ended early", report.stopped))
    columns = (
        Column(title="kernel"), Column(title="share", align="right"), Column(title="here"),
        Column(title="eager", align="right"), Column(title="graphed", align="right"),
        Column(title="compiled", align="right"),
    )  # fmt: skip
    rows = tuple(_entry_record(entry) for entry in report.entries)
    footer = ["speed-ups are over the mode's own path; in brackets: measured, and not used"] if rows else []
    busy = sum(entry.foreign_cpu_share > BUSY_SHARE for entry in report.entries)
    if busy:
        footer.append(f"others used the CPUs while {plural(busy, 'kernel')} were timed: --again when it is quiet")
    return [facts_grid(facts), Grid(title="Kernels", columns=columns, records=rows, footer=tuple(footer))]


def _entry_record(entry: EntryOutcome) -> Record:
    cells = [Cell(entry.label), Cell(format_share(entry.share)), Cell(entry.state, _TONES[entry.state])]
    for mode in ("eager", "graphed", "compiled"):
        interval, used = entry.speedups.get(mode), entry.decisions.get(mode, "").startswith(DECISION_USE)
        text = "" if interval is None else format_speedup(interval.median)
        cells.append(Cell(text if used or not text else f"({text})", "good" if used else "dim"))
    reasons = dict.fromkeys(
        decision.removeprefix(DECISION_EAGER)
        for mode, decision in entry.decisions.items()
        if mode in entry.speedups and not decision.startswith(DECISION_USE)
    )
    return Record(tuple(cells), "; ".join([*([entry.detail] if entry.detail else []), *reasons]))


_RUN_COLUMNS = (
    Column(title="run as"), Column(title="without", align="right"), Column(title="with", align="right"),
    Column(title="speed-up", align="right"), Column(title="95% interval", align="right"),
    Column(title="outputs"), Column(title="pairs", align="right"), Column(title="hits", align="right"),
    Column(title="misses", align="right"),
)  # fmt: skip


def packages_grid(reports: Mapping[str, PackageRunReport]) -> Grid:
    """Several packages, each loaded again and run with its model."""
    columns = (Column(title="model"), Column(title="kernels", align="right"), Column(title="loaded in", align="right"))
    records = []
    for name, report in reports.items():
        cells = (Cell(name), Cell(f"{report.on} of {report.kernels} on"), Cell(time_text(1e6 * report.load_seconds)))
        records += [replace(row, cells=(*cells, *row.cells)) for row in map(_run, report.runs)]
    footer = ("loaded as another program would: signature checked, each kernel behind its guard; paired runs",)
    title = "The packages, read back"
    return Grid(title=title, columns=(*columns, *_RUN_COLUMNS), records=tuple(records), footer=footer)


def package_run_grids(report: PackageRunReport) -> list[Grid]:
    """A model with and without a package: each way to run it, and what the entries served."""
    facts = [
        ("model", report.model), ("package", report.package), ("on", report.environment or report.device),
        ("kernels", f"{report.kernels}, {report.on} on; loaded in {time_text(1e6 * report.load_seconds)}"),
        *(("note", note) for note in report.notes),
    ]  # fmt: skip
    runs = Grid(title="The whole model", columns=_RUN_COLUMNS, records=tuple(map(_run, report.runs)))
    grids = [facts_grid(facts), runs]
    grids += [grid for run in report.runs if (grid := _served_grid(run)) is not None]
    return grids


def _run(run: ModeRun) -> Record:
    if run.speedup is None:
        return Record((Cell(run.mode), *[Cell("")] * 8), f"not compared: {run.why_not}")
    outputs = Cell("match", "good") if run.matches else Cell("DIFFER", "bad")
    hits = sum(entry.hits for entry in run.entries)
    misses = sum(sum(entry.misses.values()) for entry in run.entries)
    tone: Tone = "good" if run.speedup.low > 1.0 else "warn" if run.speedup.high >= 1.0 else "bad"
    return Record((
        Cell(run.mode), Cell(_ms(run.without_ms)), Cell(_ms(run.with_ms)),
        Cell(format_speedup(run.speedup.median), tone),
        Cell(format_interval(run.speedup.low, run.speedup.high), "dim"), outputs, Cell(str(len(run.with_ms))),
        Cell(str(hits)), Cell(str(misses)),
    ), _difference(run))  # fmt: skip


def _difference(run: ModeRun) -> str:
    if run.matches or run.max_abs is None or run.relative is None:
        return ""
    tokens = "; tokens differ" if run.tokens_equal is False else ""
    return f"largest difference {run.max_abs:.3g}, {run.relative:.3g} of the largest magnitude{tokens}"


def _served_grid(run: ModeRun) -> Grid | None:
    if not run.entries or run.speedup is None:
        return None
    columns = (
        Column(title="kernel"), Column(title="hits", align="right"), Column(title="misses", align="right"),
        Column(title="state", flexible=True),
    )  # fmt: skip
    records = []
    for entry in run.entries:
        reasons = ", ".join(f"{count} by {reason}" for reason, count in entry.misses.items())
        state = entry.state + (f"; {reasons}" if reasons else "")
        cells = (Cell(entry.label), Cell(str(entry.hits)), Cell(str(sum(entry.misses.values()))), Cell(state))
        records.append(Record(cells))
    title = f"{run.mode}: what {plural(len(records), 'kernel')} served in a run"
    return Grid(title=title, columns=columns, records=tuple(records))


def _ms(times: tuple[float, ...]) -> str:
    return time_text(1e3 * median(times)) if times else ""
