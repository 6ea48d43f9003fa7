"""Trials and certificates. Owns `Scored`, `WorkerFailure`, the union `Outcome`, `MemoryCheck` and `Certified`."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPassed:
    """Every tool ran to its end on every case and reported nothing."""

    tools: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryFailed:
    """A tool reported an error.

    Attributes:
        error: the first one, in one line: what, where in the kernel, how far beyond which buffer.
        case: on which it was, in words.
    """

    tool: str
    error: str
    case: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryUnavailable:
    """Memory could not be checked, and why; never charged to the candidate.

    Attributes:
        anywhere: no kernel's memory can be checked on this machine, for the same reason.
    """

    reason: str
    anywhere: bool = False


MemoryCheck: TypeAlias = "MemoryPassed | MemoryFailed | MemoryUnavailable"


@dataclass(frozen=True, slots=True, kw_only=True)
class Certified(Accepted):
    """Right on every case of the certificate. memory: what memory checking said."""

    memory: MemoryPassed | MemoryUnavailable


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
