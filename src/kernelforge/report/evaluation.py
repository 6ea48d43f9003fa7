"""Turns one judged candidate, stored or new, into what `report.judgement` reports of it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import assert_never, cast

from kernelforge.benchmark.types import Interval
from kernelforge.cards.types import VariantRecord
from kernelforge.digest import Json
from kernelforge.evaluate.types import Certified, MemoryPassed, MemoryUnavailable, Scored, WorkerFailure
from kernelforge.explain.outcome import explain
from kernelforge.explain.profile import Profile
from kernelforge.report.judgement import CertificateRow, EvalReport, OutcomeWord, PaperRow, TrialReport
from kernelforge.report.nodes import trial_row
from kernelforge.search.types import Node
from kernelforge.verify.types import Accepted, Rejected, Verdict


def eval_report(
    node: Node, record: VariantRecord, *, certificate: Verdict | WorkerFailure | None = None,
    paper: PaperRow | None = None, gate_number: int = 0, profile: Profile | None = None,
) -> EvalReport:  # fmt: skip
    """The node as `kforge eval` reports it.

    Args:
        certificate: what the complete set of cases said, if it was tried. paper: what the paper's protocol said.
        gate_number: of the trial that passed the gate, where `node` is the failed certificate's.
        profile: of its binary.
    """
    row = trial_row(node)
    scored = node.outcome if isinstance(node.outcome, Scored) else None
    return EvalReport(
        outcome=_word(row.outcome), reason=row.reason, detail=row.detail, speedup=row.speedup,
        audit=None if scored is None else str(scored.audit.kind),
        evidence=() if scored is None else scored.audit.evidence,
        floor_us=None if scored is None else scored.measurement.floor_us,
        eager_us=None if scored is None else scored.measurement.eager_us,
        candidate_us=None if scored is None else scored.measurement.candidate_us,
        variant=node.variant_id, node=node.id, number=node.number, gate_number=gate_number, disturbed=row.disturbed,
        explanation=explain(node.outcome, source=node.candidate.source, record=record, profile=profile),
        certificate=None if certificate is None else certificate_row(certificate), paper=paper,
    )  # fmt: skip


def certificate_row(certificate: Verdict | WorkerFailure) -> CertificateRow:
    """The certificate in the words of the faces."""
    match certificate:
        case Accepted():
            return CertificateRow(outcome="accepted", cases=certificate.cases, memory=_memory(certificate))
        case Rejected():
            detail = f"{certificate.case}: {certificate.detail}" if certificate.case else certificate.detail
            return CertificateRow(outcome="rejected", reason=str(certificate.reason), detail=detail)
        case WorkerFailure():
            return CertificateRow(outcome="worker_failure", detail=certificate.detail)
        case _:
            assert_never(certificate)


def trial_report(node: Node, record: VariantRecord, profile: Profile | None = None) -> TrialReport:
    """One stored node as `kforge op show --trial` reports it. profile: of its binary."""
    lines = explain(node.outcome, source=node.candidate.source, record=record, profile=profile)
    return TrialReport(label=record.variant.label, trial=trial_row(node), explanation=lines)


def _memory(certificate: Accepted) -> str:
    if not isinstance(certificate, Certified):
        return ""
    match certificate.memory:
        case MemoryPassed(tools=tools):
            return f"memory checked by {', '.join(tools)}"
        case MemoryUnavailable(reason=reason):
            return f"memory not checked: {reason}"
        case _:
            assert_never(certificate.memory)


def _word(outcome: str) -> OutcomeWord:
    return cast(OutcomeWord, outcome)


def recorded_interval(measurement: Mapping[str, Json]) -> Interval | None:
    """The speed-up of a package's measurement: through dispatch if that was timed, else of the kernel alone."""
    modes = measurement.get("modes")
    dispatch = modes.get("eager") if isinstance(modes, Mapping) else measurement.get("dispatch")
    return interval_of(dispatch.get("speedup") if isinstance(dispatch, Mapping) else measurement.get("speedup"))


def interval_of(source: Json) -> Interval | None:
    """An interval as a measurement has it; None for anything else."""
    if not isinstance(source, Mapping):
        return None
    values = [source.get(key) for key in ("median", "low", "high")]
    if not all(isinstance(v, int | float) for v in values):
        return None
    median, low, high = (float(cast(float, v)) for v in values)
    return Interval(median=median, low=low, high=high)
