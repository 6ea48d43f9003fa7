"""Verdicts. Owns `RejectReason`, `Accepted`, `Rejected`, `ErrorStatistics`."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias


class RejectReason(StrEnum):
    """Why a candidate is wrong; exactly one per candidate."""

    WRONG_VALUE = "wrong_value"
    WRONG_META = "wrong_meta"
    PRECISION_DOWNGRADE = "precision_downgrade"
    MUTATED_INPUT = "mutated_input"
    STALE_OUTPUT = "stale_output"
    OUT_OF_BOUNDS = "oob"
    UNDEFINED_BEHAVIOUR = "undefined_behaviour"
    UNINITIALISED = "uninitialised"
    NONDETERMINISTIC = "nondeterministic"
    LAUNCH_ERROR = "launch_error"
    CRASH = "crash"
    TIMEOUT = "timeout"
    OUT_OF_MEMORY = "oom"
    TIMING_SUSPECT = "timing_suspect"
    DELEGATED = "delegated"
    TAMPER = "tamper"
    FORBIDDEN = "forbidden"
    NO_VERDICT = "no_verdict"


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorStatistics:
    """Errors of one output against the float64 truth, over the finite elements.

    Attributes:
        max_abs, rms: in the output's own units. eager_max_abs, eager_rms: the same of eager's output.
    """

    max_abs: float
    rms: float
    eager_max_abs: float
    eager_rms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Accepted:
    """The candidate was right on every case.

    Attributes:
        cases: how many cases were run; worst: error statistics of the worst case.
        bitwise: every output equalled eager's bit for bit.
        repeatable: calls on the same input (three of the first case, and of the largest) wrote the same bits; False
            where that was not looked at.
    """

    cases: int
    worst: ErrorStatistics
    bitwise: bool
    repeatable: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejected:
    """The candidate is wrong on one case; the first failing check is reported.

    Attributes:
        case: which case, in words (sizes and distribution, never the seed).
        detail: one sentence that helps to repair the candidate: first wrong element, expected, got, where errors sit.
        worst_abs: largest absolute error, in the output's own units; None where it has no meaning.
    """

    reason: RejectReason
    case: str
    detail: str
    worst_abs: float | None = None


Verdict: TypeAlias = "Accepted | Rejected"
