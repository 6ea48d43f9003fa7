"""Trials. Owns `Scored`, `WorkerFailure` and the union `Outcome`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from kernelforge.audit.types import AuditLabel
from kernelforge.benchmark.types import Measurement
from kernelforge.build.types import Artifact, BuildFailure
from kernelforge.generate.types import Candidate
from kernelforge.verify.types import Accepted, Rejected


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerFailure:
    """The judge could not judge: a fault of our own or of the machine, never charged to the candidate."""

    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Scored:
    """Built, right, timed and audited."""

    verdict: Accepted
    measurement: Measurement
    audit: AuditLabel
    artifact: Artifact


Outcome: TypeAlias = "BuildFailure | Rejected | WorkerFailure | Scored"


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One candidate judged once. Appended, never edited.

    Attributes:
        started: POSIX seconds. seconds: wall time of building and judging.
    """

    candidate: Candidate
    outcome: Outcome
    started: float
    seconds: float
