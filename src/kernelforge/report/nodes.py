"""Turns a judged node into the row that people read. Pure."""

from __future__ import annotations

from typing import assert_never

from kernelforge.benchmark.clock import was_disturbed
from kernelforge.build.types import BuildFailure
from kernelforge.evaluate.types import Scored, WorkerFailure
from kernelforge.report.rows import TrialRow
from kernelforge.report.units import format_interval, format_speedup
from kernelforge.search.types import Node
from kernelforge.verify.types import Rejected


def trial_row(node: Node) -> TrialRow:
    """The node's outcome in the words of the faces."""
    outcome = node.outcome
    match outcome:
        case Scored():
            return _row(node, "accepted", scored=outcome)
        case Rejected():
            case_text = f"{outcome.case}: " if outcome.case else ""
            return _row(node, "rejected", str(outcome.reason), case_text + outcome.detail)
        case BuildFailure():
            return _row(node, "build_failure", outcome.reason, outcome.detail)
        case WorkerFailure():
            return _row(node, "worker_failure", "", outcome.detail)
        case _:
            assert_never(outcome)


def trial_line(node: Node) -> str:
    """One line for a finished trial: its number, what came of it, and what distinguishes the candidate."""
    row = trial_row(node)
    if row.speedup is not None:
        result = f"{format_speedup(row.speedup.median)} ({format_interval(row.speedup.low, row.speedup.high)})"
    else:
        first = next(iter(row.detail.splitlines()), "")
        result = f"{row.reason or row.outcome}: {first}" if first else row.reason or row.outcome
    return f"#{row.number}  {result}" + (f"  [{row.notes}]" if row.notes else "")


def _row(node: Node, outcome: str, reason: str = "", detail: str = "", *, scored: Scored | None = None) -> TrialRow:
    measurement = None if scored is None else scored.measurement
    return TrialRow(
        node=node.id, number=node.number, outcome=outcome, reason=reason, detail=detail,
        speedup=None if measurement is None else measurement.speedup,
        candidate_us=None if measurement is None else measurement.candidate_us,
        generator=node.candidate.generator, notes=node.candidate.notes, parent=node.parent, seconds=node.seconds,
        disturbed=measurement is not None and was_disturbed(measurement),
        audit="" if scored is None else str(scored.audit.kind),
    )  # fmt: skip
