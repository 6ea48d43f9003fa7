"""One outcome of the judge as a short explanation that a generator or a person can act on. Owns `explain`. Pure."""

from __future__ import annotations

from typing import assert_never

from kernelforge.build.types import BuildFailure
from kernelforge.cards.types import VariantRecord
from kernelforge.evaluate.types import Outcome, Scored, WorkerFailure
from kernelforge.explain.builds import explain_build
from kernelforge.explain.profile import Profile, explain_profile
from kernelforge.explain.rejections import explain_rejection
from kernelforge.explain.speed import explain_speed
from kernelforge.verify.types import Rejected

MAX_LINES = 25
MAX_LINE_CHARACTERS = 400


def explain(
    outcome: Outcome, *, source: str = "", record: VariantRecord | None = None, profile: Profile | None = None
) -> tuple[str, ...]:  # fmt: skip
    """What came of a candidate, why, and what to look at; at most `MAX_LINES` lines, the most important first.

    Args:
        source: of the candidate: its lines are quoted, and its launch bounds read.
        record: of the variant: without it bytes, flops and sizes of a call are unknown, and so is its name.
        profile: of its binary, if it was profiled: the diagnosis follows, in lines of its own.
    """
    match outcome:
        case Scored():
            lines = explain_speed(outcome, source, record)
        case Rejected():
            lines = explain_rejection(outcome)
        case BuildFailure():
            lines = explain_build(outcome, source, "VARIANT" if record is None else record.variant.label)
        case WorkerFailure():
            first, *rest = outcome.detail.splitlines() or [""]
            lines = (f"not judged, and no fault of the candidate: {first}", *rest)
        case _:
            assert_never(outcome)
    return _compact(lines) + (() if profile is None else explain_profile(profile, record))


def _compact(lines: tuple[str, ...]) -> tuple[str, ...]:
    """Within the limits. What is left out is said where it was; the last lines stay, for hints are there."""
    clipped = [line if len(line) <= MAX_LINE_CHARACTERS else line[: MAX_LINE_CHARACTERS - 4] + " ..." for line in lines]
    if len(clipped) <= MAX_LINES:
        return tuple(clipped)
    kept = MAX_LINES - 3
    return (*clipped[:kept], f"... {len(clipped) - kept - 2} more lines", *clipped[-2:])
