"""What `eval`, `op show --trial` and `audit` report: one candidate, judged, explained and looked into.

Owns `EvalReport`, `CertificateRow`, `PaperRow`, `TrialReport` and `AuditReport`; the rules of `report.rows` hold.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from kernelforge.benchmark.types import Interval
from kernelforge.digest import Json
from kernelforge.report.rows import TrialRow, finite, interval_json

OutcomeWord: TypeAlias = Literal["accepted", "rejected", "build_failure", "worker_failure"]
UNAVAILABLE = "unavailable"


@dataclass(frozen=True, slots=True, kw_only=True)
class CertificateRow:
    """The complete certificate of a candidate that passed the gate.

    Attributes:
        outcome: "accepted", "rejected" or "worker_failure". reason: of a rejection, else "".
        detail: case and finding of a rejection, or why nothing could be said. cases: how many were right.
        memory: what memory checking said, "" if nothing.
    """

    outcome: OutcomeWord
    reason: str = ""
    detail: str = ""
    cases: int | None = None
    memory: str = ""

    def to_json(self) -> dict[str, Json]:
        return {
            "outcome": self.outcome, "reason": self.reason, "detail": self.detail, "cases": self.cases,
            "memory": self.memory,
        }  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class PaperRow:
    """What the original paper's protocol says; no decision uses it. The fields are those of `PaperResult`."""

    correct: bool | None
    speedup: float | None
    note: str

    def to_json(self) -> dict[str, Json]:
        return {"correct": self.correct, "speedup": finite(self.speedup), "note": self.note}


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalReport:
    """One candidate file, judged.

    Attributes:
        outcome: "accepted", "rejected", "build_failure" or "worker_failure".
        reason: typed (`verify.types.RejectReason` or the build's reason), "" if accepted.
        detail: one sentence, or the compiler's output.
        audit: "generated", "backend" or "fallback"; None unless accepted. evidence: what it was computed from.
        node: id of the stored node, or "". number: of its trial within the variant; 0 if nothing was stored.
        gate_number: of the trial that passed the gate, if a failed certificate was stored as one more; else 0.
        disturbed: others used the machine while it was timed.
        explanation: the outcome in a few lines, with what to look at.
        certificate: None if none was asked for, or the gate was not passed. paper: None if it was not asked for.
    """

    outcome: OutcomeWord
    reason: str = ""
    detail: str = ""
    speedup: Interval | None = None
    audit: str | None = None
    evidence: tuple[str, ...] = ()
    floor_us: float | None = None
    eager_us: float | None = None
    candidate_us: float | None = None
    variant: str = ""
    node: str = ""
    number: int = 0
    gate_number: int = 0
    disturbed: bool = False
    explanation: tuple[str, ...] = ()
    certificate: CertificateRow | None = None
    paper: PaperRow | None = None

    def to_json(self) -> dict[str, Json]:
        return {
            "outcome": self.outcome, "reason": self.reason, "detail": self.detail,
            "speedup": interval_json(self.speedup), "audit": self.audit, "evidence": list(self.evidence),
            "floor_us": finite(self.floor_us), "eager_us": finite(self.eager_us),
            "candidate_us": finite(self.candidate_us), "variant": self.variant, "node": self.node,
            "number": self.number, "gate_number": self.gate_number, "disturbed": self.disturbed,
            "explanation": list(self.explanation),
            "certificate": None if self.certificate is None else self.certificate.to_json(),
            "paper": None if self.paper is None else self.paper.to_json(),
        }  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialReport:
    """One stored trial with its explanation. label: of the variant."""

    label: str
    trial: TrialRow
    explanation: tuple[str, ...]

    def to_json(self) -> dict[str, Json]:
        return {"label": self.label, **self.trial.to_json(), "explanation": list(self.explanation)}


@dataclass(frozen=True, slots=True, kw_only=True)
class AblationRow:
    """The candidate with its `launch` replaced by a stub that does nothing.

    Attributes:
        status: "shown" (only the candidate's launch writes the outputs), "not_shown", or "unavailable".
        detail: what was seen, or why nothing could be.
    """

    status: Literal["shown", "not_shown", "unavailable"]
    detail: str

    def to_json(self) -> dict[str, Json]:
        return {"status": self.status, "detail": self.detail}


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditReport:
    """Who does the work of one node.

    Attributes:
        outcome, reason, detail: of the node, as in `EvalReport`. What follows is known of accepted nodes only.
        label: as stored, "generated", "backend" or "fallback"; evidence: what it was computed from.
        label_now: of the stored binary, audited again; a rejection's reason if it would be refused today.
        evidence_now: of that label, or the rejection's sentence.
        needed: linked libraries. undefined: symbols that the process must provide.
        functions: (name, bytes) that the binary defines itself, largest first. sections: (name, bytes).
        kernels: names of the `__global__` functions (CUDA). kernel_source: where from, or why there are none.
        launched: (name, launches) of the kernels that one call ran (CUDA). launched_source: by what, or why unknown.
        ablation: None for a node without a binary.
    """

    node: str
    number: int
    variant: str
    variant_label: str
    outcome: OutcomeWord
    reason: str = ""
    detail: str = ""
    label: str | None = None
    evidence: tuple[str, ...] = ()
    label_now: str | None = None
    evidence_now: tuple[str, ...] = ()
    binary: str = ""
    size_bytes: int = 0
    needed: tuple[str, ...] = ()
    undefined: tuple[str, ...] = ()
    functions: tuple[tuple[str, int], ...] = ()
    sections: tuple[tuple[str, int], ...] = ()
    kernels: tuple[str, ...] = ()
    kernel_source: str = ""
    launched: tuple[tuple[str, int], ...] = ()
    launched_source: str = ""
    ablation: AblationRow | None = None

    @property
    def foreign(self) -> tuple[str, ...]:
        """Kernels that ran although the binary does not hold them; none if it is not known what it holds."""
        return tuple(name for name, _ in self.launched if self.kernels and name not in self.kernels)

    @property
    def own_work(self) -> bool:
        """Nothing contradicts that the candidate does the work itself; what is unavailable contradicts nothing."""
        labels_agree = self.label == "generated" and self.label_now == "generated"
        shown = self.ablation is not None and self.ablation.status != "not_shown"
        return labels_agree and shown and not self.foreign

    def to_json(self) -> dict[str, Json]:
        return {
            "node": self.node, "number": self.number, "variant": self.variant, "variant_label": self.variant_label,
            "outcome": self.outcome, "reason": self.reason, "detail": self.detail, "label": self.label,
            "evidence": list(self.evidence), "label_now": self.label_now, "evidence_now": list(self.evidence_now),
            "binary": self.binary, "size_bytes": self.size_bytes, "needed": list(self.needed),
            "undefined": list(self.undefined),
            "functions": [{"name": name, "bytes": size} for name, size in self.functions],
            "sections": [{"name": name, "bytes": size} for name, size in self.sections],
            "kernels": list(self.kernels), "kernel_source": self.kernel_source,
            "launched": [{"name": name, "launches": count} for name, count in self.launched],
            "launched_source": self.launched_source, "foreign": list(self.foreign),
            "ablation": None if self.ablation is None else self.ablation.to_json(), "own_work": self.own_work,
        }  # fmt: skip
