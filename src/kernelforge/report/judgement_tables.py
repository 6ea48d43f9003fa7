"""The tables of `report.judgement`, as `report.grid` data. Pure: no terminal, no files."""

from __future__ import annotations

import re
from collections.abc import Sequence

from kernelforge.explain.ptxas import plain_name
from kernelforge.report.grid import Cell, Column, Grid, Record, Tone
from kernelforge.report.judgement import AblationRow, AuditReport, CertificateRow, EvalReport, PaperRow, TrialReport
from kernelforge.report.tables import facts_grid, interval_text
from kernelforge.report.units import format_bytes, format_speedup, format_us
from kernelforge.wording import plural

MAX_FUNCTIONS = 12
MAX_SYMBOLS = 40
_SECTIONS_SHOWN = (".text", ".rodata", ".nv_fatbin", ".data", ".bss", ".tdata", ".tbss", ".init_array")
_LABEL_TONES: dict[str, Tone] = {"generated": "good", "backend": "warn", "fallback": "warn", "torch": "warn"}
_ABLATION_TONES: dict[str, Tone] = {"shown": "good", "not_shown": "bad", "unavailable": "warn"}
_COMPILERS_OWN = re.compile(r"imports (_ITM_\w+|__cxa_finalize|__gmon_start__|workspace_bytes)")
"""Evidence that says nothing of a candidate: every shared object asks for these, and the glue for the last."""
_ABLATION_WORDS = {"shown": "only its own launch writes the outputs", "not_shown": "NOT SHOWN"}


def evaluation_grids(report: EvalReport, *, certify: bool) -> list[Grid]:
    """The judgement of one candidate file, and its explanation.

    Args:
        certify: a certificate was asked for; if there is none, it is said why.
    """
    facts = [("outcome", f"{report.outcome}: {report.reason}" if report.reason else report.outcome)]
    if report.number:
        facts.append(("trial", _trial(report.number, report.node)))
    if report.gate_number:
        facts.append(("gate", f"passed, as trial {report.gate_number}; the failed certificate is a trial of its own"))
    if report.speedup is not None:
        facts += [
            ("speed-up", interval_text(report.speedup, disturbed=report.disturbed)),
            ("candidate", format_us(report.candidate_us)), ("eager", format_us(report.eager_us)),
            ("floor", format_us(report.floor_us)),
        ]  # fmt: skip
    if report.audit is not None:
        told = "; ".join(line for line in report.evidence if not _COMPILERS_OWN.fullmatch(line))
        facts.append(("audit", f"{report.audit} ({told})" if told else report.audit))
    if report.certificate is not None:
        facts.append(("certificate", _certificate(report.certificate)))
    elif certify:
        facts.append(("certificate", "not tried: the gate was not passed"))
    if report.paper is not None:
        facts.append(("paper", _paper(report.paper)))
    grids = [facts_grid(facts, disturbed=report.disturbed)]
    lines = report.explanation or tuple(report.detail.splitlines())
    return [*grids, explanation_grid(lines)] if lines else grids


def explanation_grid(lines: Sequence[str]) -> Grid:
    """Lines of text; those that are indented (source) keep their indentation."""
    columns = (Column(title="", flexible=True),)
    records = tuple(Record((Cell(line),)) for line in lines)
    return Grid(title="Explanation", columns=columns, records=records, header=False)


def trial_grids(report: TrialReport) -> list[Grid]:
    """One stored trial."""
    trial = report.trial
    facts = [
        ("variant", report.label), ("trial", _trial(trial.number, trial.node)),
        ("candidate", ", ".join(p for p in (trial.generator, trial.notes) if p)),
        ("outcome", f"{trial.outcome}: {trial.reason}" if trial.reason else trial.words),
    ]  # fmt: skip
    if trial.speedup is not None:
        facts.append(("speed-up", interval_text(trial.speedup, disturbed=trial.disturbed)))
    return [facts_grid(facts, disturbed=trial.disturbed), explanation_grid(report.explanation)]


def audit_grids(report: AuditReport) -> list[Grid]:
    """Who does the work of a node: the verdict first, then the evidence."""
    node = f"{report.number} of {report.variant_label} ({report.node[:16]})"
    if report.label is None:
        word = f"{report.outcome}: {report.reason}" if report.reason else report.outcome
        why = "none: only an accepted candidate's binary is kept"
        rows = [_row("node", node), _row("outcome", word, "bad"), _row("detail", report.detail), _row("binary", why)]
        return [_facts(rows)]
    rows = [
        _row("node", node), _verdict(report),
        _row("label", report.label, _LABEL_TONES.get(report.label, "bad")),
        _row("audited again", _again(report), _LABEL_TONES.get(report.label_now or "", "bad")),
    ]  # fmt: skip
    if report.ablation is not None:
        rows.append(_row("without launch", _ablation(report.ablation), _ABLATION_TONES[report.ablation.status]))
    if report.kernel_source:
        rows.append(_row("GPU kernels", _kernels(report)))
    if report.launched_source:
        rows.append(_row("kernels that ran", _launched(report), "bad" if report.foreign else ""))
    return [_facts(rows), _facts(_evidence(report), title="Evidence")]


def _verdict(report: AuditReport) -> Record:
    if not report.own_work:
        return _row("verdict", "DOES NOT DO ITS OWN WORK, or cannot show it", "bad")
    if report.ablation is not None and report.ablation.status == "shown":
        return _row("verdict", "does its own work", "good")
    return _row("verdict", "nothing says that others do its work, but it was not run here", "warn")


def _evidence(report: AuditReport) -> list[Record]:
    shown = [f"{plain_name(name)} ({format_bytes(size)})" for name, size in report.functions[:MAX_FUNCTIONS]]
    sections = [f"{name} {format_bytes(size)}" for name, size in report.sections if name in _SECTIONS_SHOWN]
    imports = _listed(report.undefined, MAX_SYMBOLS) or "nothing"
    if report.kernel_source:
        imports += " (the CUDA run time in the binary needs most of these)"
    rows = [
        _row("binary", f"{report.binary[:16]}, {format_bytes(report.size_bytes)}"),
        _row("links", ", ".join(report.needed) or "nothing"),
        _row("imports", imports),
        _row("own functions", _more(shown, len(report.functions)) or "none that the symbol table names"),
        _row("sections", ", ".join(sections) or "none"),
    ]
    if report.evidence and report.label != report.label_now:
        rows.append(_row("stored evidence", _listed(report.evidence, MAX_SYMBOLS)))
    return rows


def _again(report: AuditReport) -> str:
    if report.label_now == report.label:
        return f"{report.label_now}, as stored"
    return f"{report.label_now}: {'; '.join(report.evidence_now)}"


def _ablation(row: AblationRow) -> str:
    word = _ABLATION_WORDS.get(row.status, row.status)
    return f"{word}: {row.detail}"


def _kernels(report: AuditReport) -> str:
    names = _listed([plain_name(name) for name in report.kernels], MAX_FUNCTIONS)
    return f"{names} ({report.kernel_source})" if names else report.kernel_source


def _launched(report: AuditReport) -> str:
    shown = [plain_name(name) + (f" x{count}" if count > 1 else "") for name, count in report.launched]
    text = f"{_listed(shown, MAX_FUNCTIONS)} ({report.launched_source})" if shown else report.launched_source
    if report.foreign:
        text += f"; NOT IN THE BINARY: {_listed([plain_name(name) for name in report.foreign], MAX_FUNCTIONS)}"
    return text


def _trial(number: int, node: str) -> str:
    return f"{number}, node {node[:16]}"


def _certificate(row: CertificateRow) -> str:
    word = f"{row.outcome}: {row.reason}" if row.reason else row.outcome
    parts = [word, f"right on {plural(row.cases, 'case')}" if row.cases is not None else "", row.detail, row.memory]
    return "; ".join(p for p in parts if p)


def _paper(row: PaperRow) -> str:
    word = {True: "correct", False: "wrong", None: "not tried"}[row.correct]
    speedup = f", {format_speedup(row.speedup)}" if row.speedup is not None else ""
    return f"{word}{speedup} ({row.note})"


def _listed(names: Sequence[str], most: int) -> str:
    return _more(list(names[:most]), len(names))


def _more(shown: list[str], total: int) -> str:
    return ", ".join(shown) + (f" and {total - len(shown)} more" if total > len(shown) else "")


def _row(name: str, value: str, tone: Tone = "") -> Record:
    return Record((Cell(name, "dim"), Cell(value, tone)))


def _facts(records: Sequence[Record], *, title: str = "") -> Grid:
    columns = (Column(title=""), Column(title="", flexible=True))
    return Grid(title=title, columns=columns, records=tuple(records), header=False)
