"""The tables that people see, built from `report.rows` as `report.grid` data. Pure: no terminal, no files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

from kernelforge.benchmark.types import Interval
from kernelforge.report.grid import Cell, Column, Grid, Record, Tone, cells
from kernelforge.report.rows import (
    DECISION_EAGER,
    DECISION_PENDING,
    DECISION_USE,
    CaptureReport,
    CheckRow,
    DimRow,
    DoctorLine,
    EntryRow,
    ExportReport,
    OperatorRow,
    PackageReport,
    RunReport,
    TrialRow,
    UsedKernel,
    WholeModel,
    least_elements_of,
)
from kernelforge.report.units import (
    UNKNOWN,
    format_bytes,
    format_duration,
    format_interval,
    format_ms,
    format_share,
    format_speedup,
    format_us,
)
from kernelforge.wording import plural, speedup_words

WIDE_COLUMNS = 140
"""From this width on, the operator table shows every number in a column of its own."""

_OUTCOME_TONES: Mapping[str, Tone] = {
    "accepted": "good", "rejected": "bad", "build_failure": "bad", "worker_failure": "warn",
}  # fmt: skip
_STATUS_TONES: Mapping[str, Tone] = {"ok": "good", "warn": "warn", "fail": "bad"}


LEAST_SHARE = 0.001
"""Of the captured time: what never-tried variants below it take is not worth a line of the operator table."""

SEARCH_LEGEND = "in model: a call as captured; eager, kernel, search: of the best trial, timed in pairs by the judge"
DISPATCH_LEGEND = "dispatch: the speed-up when called from Python as a model does; it decides"

DISTURBED = "*"
DISTURBED_NOTE = f"{DISTURBED} others used the machine while this was timed"


def operator_grid(
    rows: Sequence[OperatorRow],
    *,
    width: int | None = None,
    title: str = "",
    least_share: float = 0.0,
    how_to_see_all: str = "",
) -> Grid:
    """The operator table: one variant a record, largest share first.

    Args:
        width: of the terminal; None means that there is no limit (a pipe).
        least_share: variants below it that were never tried are counted in the last line instead of listed.
        how_to_see_all: what that line says of them, or "".
    """
    ordered = sorted(rows, key=lambda r: -r.share)
    shown = [r for r in ordered if r.share >= least_share or r.trials]
    disturbed = any(r.disturbed for r in shown)
    legend = [SEARCH_LEGEND] if any(r.speedup is not None for r in shown) else []
    legend += [DISPATCH_LEGEND] if any(r.dispatch is not None for r in shown) else []
    footer = [_coverage_line(ordered), *legend, *([DISTURBED_NOTE] if disturbed else [])]
    if len(shown) < len(ordered):
        hint = f" ({how_to_see_all})" if how_to_see_all else ""
        footer.append(f"and {len(ordered) - len(shown)} more below {format_share(least_share)} of the time{hint}")
    wide = width is None or width >= WIDE_COLUMNS
    titles = _WIDE_TITLES if wide else _NARROW_TITLES
    columns = (
        Column(title="variant"), *(Column(title=t, align="right") for t in titles),
        Column(title="decision", flexible=True) if wide else Column(title=""),
    )  # fmt: skip
    record = _wide_record if wide else _narrow_record
    records = tuple(record(r, disturbed) for r in shown)
    return Grid(title=title, columns=columns, records=records, footer=tuple(footer))


_WIDE_TITLES = (
    "share", "calls", "in model", "eager", "kernel", "floor", "search", "95% interval", "dispatch",
)  # fmt: skip
_NARROW_TITLES = ("share", "in model", "kernel", "search", "dispatch")


def _wide_record(row: OperatorRow, marks: bool) -> Record:
    return Record((
        Cell(row.label), Cell(format_share(row.share)), Cell(str(row.calls)), Cell(format_us(row.eager_us)),
        Cell(format_us(row.judged_eager_us)), Cell(format_us(row.best_us)), Cell(format_us(row.floor_us), "dim"),
        _search_cell(row, marks), Cell(format_interval(row.speedup_low, row.speedup_high), "dim"), _dispatch_cell(row),
        Cell(row.decision, _decision_tone(row.decision)),
    ))  # fmt: skip


def _narrow_record(row: OperatorRow, marks: bool) -> Record:
    word, _, reason = row.decision.partition(": ")
    short = {"not forged": "skip", DECISION_PENDING: "new"}.get(word, word)
    interval = format_interval(row.speedup_low, row.speedup_high)
    parts = [plural(row.calls, "call")]
    if row.judged_eager_us is not None:
        parts.append(f"best trial: eager {format_us(row.judged_eager_us)}, floor {format_us(row.floor_us)}")
    parts.append(f"search interval {interval}" if interval else "")
    parts.append(f"{word}: {reason}" if reason else "")
    note = "; ".join(p for p in parts if p)
    line = (
        Cell(short_label(row.label)), Cell(format_share(row.share)), Cell(format_us(row.eager_us)),
        Cell(format_us(row.best_us)), _search_cell(row, marks), _dispatch_cell(row),
        Cell(short, _decision_tone(row.decision)),
    )  # fmt: skip
    return Record(line, note)


def short_label(label: str, room: int = 28) -> str:
    """The label within `room` characters; the digits at its end, which commands accept, stay."""
    name, _, digits = label.rpartition("-")
    return label if len(label) <= room else f"{name[: room - len(digits) - 4]}...-{digits}"


def marked(speedup: float | None, *, disturbed: bool, marks: bool) -> str:
    """A speed-up in a column some of whose numbers are marked (or not), so that the digits still align."""
    return format_speedup(speedup) + ((DISTURBED if disturbed else " ") if marks else "")


def _search_cell(row: OperatorRow, marks: bool) -> Cell:
    faster = row.speedup_low is not None and row.speedup_low > 1.0
    return Cell(marked(row.speedup, disturbed=row.disturbed, marks=marks), "good" if faster else "")


def _dispatch_cell(row: OperatorRow) -> Cell:
    if row.dispatch is None:
        return Cell(UNKNOWN)
    return Cell(format_speedup(row.dispatch.median), "good" if row.dispatch.low > 1.0 else "")


def _decision_tone(decision: str) -> Tone:
    if decision.startswith(DECISION_USE):
        return "good"
    return "warn" if decision.startswith(DECISION_EAGER) else "dim"


def _coverage_line(rows: Sequence[OperatorRow]) -> str:
    used = [r for r in rows if r.decision.startswith(DECISION_USE)]
    line = f"{len(used)} of {plural(len(rows), 'variant')} use a generated kernel"
    return f"{line}, {format_share(sum(r.share for r in used))} of the captured time" if used else line


def whole_model_grid(models: Sequence[WholeModel]) -> Grid:
    """The paired A/B of whole models."""
    columns = (
        Column(title="model"), Column(title="eager", align="right"), Column(title="with package", align="right"),
        Column(title="speed-up", align="right"), Column(title="95% interval", align="right"),
        Column(title="output"),
    )  # fmt: skip
    return Grid(title="Whole model, paired runs", columns=columns, records=tuple(_whole_record(m) for m in models))


def package_line(report: RunReport) -> str:
    """What became of the package, where no kernel is in use; else ""."""
    if report.package:
        return ""
    if report.unused:
        return f"{report.unused}: its kernels made the whole model slower, so all of them are off"
    return "no package was written"


def _whole_record(whole: WholeModel) -> Record:
    if not whole.hits:
        return _uncompared_record(whole)
    sure = whole.speedup.low > 1.0
    note = f"{plural(whole.hits, 'call')} dispatched, {whole.misses} left to eager"
    note += f"; largest output difference {whole.output_max_abs:.2g} ({whole.output_rel:.2g} of the largest output)"
    if whole.tokens_equal is not None:
        note += "; greedy decoding gives " + ("the same tokens" if whole.tokens_equal else "OTHER TOKENS")
    if not sure:
        note += "; " + ("slower than eager" if whole.speedup.high < 1.0 else "no clear difference in speed")
    if format_speedup(whole.speedup.median) != format_speedup(whole.eager_ms / whole.fast_ms):
        pairs = plural(whole.pairs, "pair") if whole.pairs else "all pairs"
        note += f"; speed-up: median of {pairs}, each against its own eager run"
    return Record(
        (
            Cell(whole.name, "strong"), Cell(format_ms(whole.eager_ms)), Cell(format_ms(whole.fast_ms)),
            Cell(format_speedup(whole.speedup.median), "good" if sure else "warn"),
            Cell(format_interval(whole.speedup.low, whole.speedup.high), "dim"),
            Cell("equal", "good") if whole.outputs_match else Cell("DIFFERS", "bad"),
        ),
        note,
    )  # fmt: skip


def _uncompared_record(whole: WholeModel) -> Record:
    """Eager ran against itself: a difference between the two would only be noise."""
    why = f"none of {plural(whole.misses, 'call')} was dispatched" if whole.misses else "no kernel is in use"
    return Record(
        (
            Cell(whole.name, "strong"), Cell(format_ms(whole.eager_ms)), Cell(UNKNOWN), Cell(UNKNOWN), Cell(""),
            Cell(UNKNOWN) if whole.outputs_match else Cell("DIFFERS", "bad"),
        ),
        f"{why}, so there is nothing to compare",
    )  # fmt: skip


def capture_grid(report: CaptureReport) -> Grid:
    """What a capture recorded and what it left out."""
    facts = [
        ("model", report.model), ("project", report.project), ("device", report.device),
        ("recorded", f"{plural(report.calls, 'call')} in {plural(report.variants, 'variant')}"),
        ("times", _timed_over(report)), ("covers", f"{format_share(report.coverage_wall)} of the wall time"),
    ]  # fmt: skip
    if report.coverage_device is not None:
        facts.append(("", f"{format_share(report.coverage_device)} of the device time"))
    if report.unsupported:
        listed = ", ".join(f"{name} ({calls})" for name, calls in report.unsupported)
        facts.append(("not covered", listed))
    return facts_grid(facts, disturbed=report.disturbed)


def _timed_over(report: CaptureReport) -> str:
    runs = f"medians of {plural(report.repeats, 'run')}" if report.repeats > 1 else "of one run"
    return runs + (DISTURBED if report.disturbed else "")


def facts_grid(facts: Sequence[tuple[str, str]], *, title: str = "", disturbed: bool = False) -> Grid:
    """Names and values, one pair a line. disturbed: a value is marked with `DISTURBED`."""
    records = tuple(Record((Cell(name, "dim"), Cell(value))) for name, value in facts)
    columns = (Column(title=""), Column(title="", flexible=True))
    footer = (DISTURBED_NOTE,) if disturbed else ()
    return Grid(title=title, columns=columns, records=records, header=False, footer=footer)


def variant_grid(row: OperatorRow) -> Grid:
    """One variant's facts."""
    speedup = marked(row.speedup, disturbed=True, marks=row.disturbed)
    packaged = [("in package", _packaged(row))] if row.packaged else []
    if interval := format_interval(row.speedup_low, row.speedup_high):
        speedup += f"  (95% interval {interval})"
    return facts_grid(
        [
            ("variant", row.variant), ("call", row.describe), ("calls", str(row.calls)),
            ("share", format_share(row.share)), ("eager in model", format_us(row.eager_us)),
            ("best trial", _best_trial(row)),
            ("floor", format_us(row.floor_us)), ("search", speedup), ("dispatch", interval_text(row.dispatch)),
            ("decision", row.decision), *packaged,
        ],
        title=row.label, disturbed=row.disturbed,
    )  # fmt: skip


def _best_trial(row: OperatorRow) -> str:
    if row.judged_eager_us is None:
        return "none was accepted" if row.trials else "not tried"
    return f"eager {format_us(row.judged_eager_us)}, kernel {format_us(row.best_us)}"


def _packaged(row: OperatorRow) -> str:
    least = least_elements_of(row.decision)
    sizes = f"from {plural(least, 'element')} on" if least else "for its larger sizes"
    return f"{row.packaged}, {sizes}"


def dim_grid(dims: Sequence[DimRow]) -> Grid:
    """Named dims: the guard's rule, and the sizes that the model used."""
    columns = (
        Column(title="dim"), Column(title="low", align="right"), Column(title="high", align="right"),
        Column(title="multiple of", align="right"), Column(title="observed (calls)", flexible=True),
    )  # fmt: skip
    return Grid(title="Sizes that vary", columns=columns, records=tuple(_dim_record(d) for d in dims))


def _dim_record(dim: DimRow) -> Record:
    shown = [f"{value:g} ({calls})" for value, calls in dim.observed]
    if len(shown) > 12:
        shown = [*shown[:6], f"... {len(shown) - 9} more ...", *shown[-3:]]
    return Record(cells(dim.name, f"{dim.low:g}", f"{dim.high:g}", str(dim.multiple_of), ", ".join(shown)))


def trial_grid(trials: Sequence[TrialRow]) -> Grid:
    """A variant's trials, oldest first."""
    columns = (
        Column(title="#", align="right"), Column(title="node"), Column(title="outcome"),
        Column(title="time", align="right"), Column(title="speed-up", align="right"),
        Column(title="95% interval", align="right"), Column(title="candidate", flexible=True),
    )  # fmt: skip
    disturbed = any(t.disturbed for t in trials)
    records = tuple(_trial_record(t, disturbed) for t in trials)
    return Grid(title="Trials", columns=columns, records=records, footer=(DISTURBED_NOTE,) if disturbed else ())


def _trial_record(trial: TrialRow, marks: bool) -> Record:
    outcome = Cell(trial.words, _OUTCOME_TONES.get(trial.outcome, ""))
    low, high = (trial.speedup.low, trial.speedup.high) if trial.speedup else (None, None)
    median = trial.speedup.median if trial.speedup else None
    failed = trial.outcome != "accepted" and trial.detail
    return Record(
        (
            Cell(str(trial.number)), Cell(trial.node[:8], "dim"), outcome, Cell(format_us(trial.candidate_us)),
            Cell(marked(median, disturbed=trial.disturbed, marks=marks)),
            Cell(format_interval(low, high), "dim"), Cell(trial.notes or trial.generator),
        ),
        trial.detail.splitlines()[0] if failed else "",
    )  # fmt: skip


def interval_text(interval: Interval | None, *, disturbed: bool = False) -> str:
    """A speed-up with its interval in one phrase."""
    if interval is None:
        return UNKNOWN
    speedup = marked(interval.median, disturbed=True, marks=disturbed)
    return f"{speedup}  (95% interval {format_interval(interval.low, interval.high)})"


def export_grids(report: ExportReport) -> list[Grid]:
    """A written package, which variants it does not serve, and what those in use gain."""
    size = f", {format_bytes(report.size_bytes)}" if report.size_bytes else ""
    used = "" if report.held == report.entries else f", {report.entries} in use"
    facts = [("package", report.path), ("holds", plural(report.held, "kernel") + used + size)]
    facts += [("not used" if i == 0 else "", f"{label}: {why}") for i, (label, why) in enumerate(report.skipped)]
    return [facts_grid(facts), *([_used_grid(report.used)] if report.used else [])]


def _used_grid(used: Sequence[UsedKernel]) -> Grid:
    columns = (
        Column(title="kernel"), Column(title="share", align="right"), Column(title="dispatch", align="right"),
        Column(title="95% interval", align="right"), Column(title="serves", flexible=True),
    )  # fmt: skip
    return Grid(
        title="Kernels in use", columns=columns, records=tuple(map(_used_record, used)), footer=(DISPATCH_LEGEND,)
    )


def _used_record(used: UsedKernel) -> Record:
    dispatch = used.dispatch if "eager" in used.modes or not used.modes else None
    low, high = (None, None) if dispatch is None else (dispatch.low, dispatch.high)
    others = {mode: interval for mode, interval in used.modes.items() if mode != "eager"}
    notes = [f"{_IN_MODE[mode]} {speedup_words(i.median, i.low, i.high)}" for mode, i in others.items()]
    return Record((
        Cell(used.label), Cell(format_share(used.share)),
        Cell(format_speedup(dispatch.median if dispatch else None), "good" if (low or 0.0) > 1.0 else "warn"),
        Cell(format_interval(low, high), "dim"),
        Cell(_serves(used.origin, used.least_elements) or "all captured sizes"),
    ), ("" if dispatch else "only ") + "; ".join(notes) if notes else "")  # fmt: skip


_IN_MODE = {"graphed": "in CUDA graphs", "compiled": "under torch.compile"}


def _serves(origin: str, least_elements: int) -> str:
    """ "softmax-1a2b3c4d from 4096 elements on", or "" for an entry that serves every size of its own variant."""
    return f"{origin} from {plural(least_elements, 'element')} on" if least_elements else ""


def package_grids(report: PackageReport) -> list[Grid]:
    """A package: its header, its entries, and its checks if it was verified."""
    facts = [
        ("package", report.path), ("made for", f"{report.model} on {report.device}"),
        ("format", f"{report.format}, {format_bytes(report.size_bytes)}"), *report.environment.items(),
        *_trust_facts(report),
    ]  # fmt: skip
    grids = [facts_grid(facts)]
    if report.entries:
        grids.append(_entry_grid(report.entries))
    if report.checks:
        off = frozenset(e.variant[:8] for e in report.entries if not e.in_use)
        grids.append(check_grid(report.checks, off=off))
    return grids


def _trust_facts(report: PackageReport) -> list[tuple[str, str]]:
    """What one wants to know before a package's native code runs in one's process."""
    from kernelforge.package.signing import fingerprint

    if not report.digest:
        return []
    entries = report.entries
    facts = [
        ("operators", _counted(e.operator for e in entries)), ("made by", _counted(e.made_by for e in entries)),
        ("audit", _counted(e.audit for e in entries)),
        ("signed by", f"{fingerprint(report.signer)} ({report.signer})" if report.signer else "nobody"),
        ("hash", f"sha256:{report.digest}"), ("trust", report.trust),
    ]  # fmt: skip
    return [(name, value) for name, value in facts if value]


def _counted(names: Iterable[str]) -> str:
    """Names with how often each is there: "add 2, relu 1"."""
    return ", ".join(f"{name or 'unknown'} {count}" for name, count in sorted(Counter(names).items()))


def _entry_grid(entries: Sequence[EntryRow]) -> Grid:
    columns = (
        Column(title="kernel"), Column(title="backend"), Column(title="needs"),
        Column(title="dispatch", align="right"), Column(title="95% interval", align="right"),
        Column(title="audit"),
    )  # fmt: skip
    records = tuple(_entry_record(e) for e in entries)
    return Grid(title="Kernels", columns=columns, records=records, footer=(DISPATCH_LEGEND,))


def _entry_record(entry: EntryRow) -> Record:
    low, high = (entry.speedup.low, entry.speedup.high) if entry.speedup else (None, None)
    serves = _serves(entry.origin, entry.least_elements)
    return Record(
        (
            Cell(entry.label), Cell(entry.backend), Cell(entry.target),
            Cell(format_speedup(entry.speedup.median if entry.speedup else None)),
            Cell(format_interval(low, high), "dim"), Cell(entry.audit),
        ),
        "; ".join([*([f"serves {serves}"] if serves else []), entry.describe, *_decision_phrases(entry.decisions)]),
    )  # fmt: skip


def _decision_phrases(decisions: Mapping[str, str]) -> list[str]:
    """Modes of dispatch with the same decision in one phrase: "eager mode: use", "graphed mode: off (not measured)"."""
    modes: dict[str, list[str]] = {}
    for mode, decision in decisions.items():
        modes.setdefault(decision, []).append(mode)
    phrases = []
    for decision, names in sorted(modes.items(), key=lambda item: item[0] != DECISION_USE):
        what = f"off ({decision.removeprefix(DECISION_EAGER)})" if decision.startswith(DECISION_EAGER) else decision
        phrases.append(f"{' and '.join(names)} mode: {what}")
    return phrases


def check_grid(checks: Sequence[CheckRow], *, off: Collection[str] = ()) -> Grid:
    """The checks of a package.

    Args:
        off: names of checks on kernels that the package itself does not use. Nothing is wrong with those, but "ok"
            beside them would read as if they ran.
    """
    records = tuple(_check_record(c, off=c.name in off) for c in checks)
    columns = (Column(title=""), Column(title="check"), Column(title="", flexible=True))
    return Grid(title="Checks", columns=columns, records=records, header=False)


def _check_record(check: CheckRow, *, off: bool) -> Record:
    if not check.ok:
        return Record((Cell("fail", "bad"), Cell(check.name), Cell(check.detail)))
    if not off:
        return Record((Cell("ok", "good"), Cell(check.name), Cell(check.detail)))
    operator, _, reason = check.detail.partition(": ")
    return Record((Cell("off", "warn"), Cell(check.name), Cell(f"{operator}: intact, but not used: {reason}")))


def doctor_grid(lines: Sequence[DoctorLine]) -> Grid:
    """What `doctor` found, with the fix under each line that needs one."""
    records = tuple(
        Record(
            (Cell(line.status, _STATUS_TONES[line.status]), Cell(line.name), Cell(line.detail)),
            f"fix: {line.fix}" if line.fix else "",
        )
        for line in lines
    )
    columns = (Column(title=""), Column(title=""), Column(title="", flexible=True))
    return Grid(columns=columns, records=records, header=False)


def demo_line(seconds: float, peak_rss_bytes: int) -> str:
    """The demo's cost in one line."""
    return f"took {format_duration(seconds)}, peak memory {format_bytes(peak_rss_bytes)}"
