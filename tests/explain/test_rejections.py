"""Every reason to reject has a hint of its own, and the judge's own words stay."""

from __future__ import annotations

import pytest

from kernelforge.evaluate.types import WorkerFailure
from kernelforge.explain.outcome import MAX_LINES, explain
from kernelforge.explain.rejections import HINTS
from kernelforge.verify.types import Rejected, RejectReason


def test_every_reason_has_a_hint_and_no_two_the_same() -> None:
    assert set(HINTS) == set(RejectReason)
    assert len({hint.look_at for hint in HINTS.values()}) == len(HINTS)


@pytest.mark.parametrize("reason", RejectReason)
def test_a_rejection_says_what_where_why_and_where_to_look(reason: RejectReason) -> None:
    lines = explain(Rejected(reason=reason, case="n0=17, normal values", detail="element [3] is 1, it must be 2"))
    assert lines[:3] == (f"rejected: {reason}", "case: n0=17, normal values", "element [3] is 1, it must be 2")
    assert lines[3].startswith("usual cause: ") and lines[4].startswith("look at: ")


def test_a_long_detail_leaves_room_for_the_hint() -> None:
    detail = "\n".join(f"line {i}" for i in range(100))
    lines = explain(Rejected(reason=RejectReason.CRASH, case="", detail=detail))
    assert len(lines) == MAX_LINES
    assert lines[-1].startswith("look at: ") and lines[-3] == "... 79 more lines"


def test_a_failure_of_the_judge_is_not_charged() -> None:
    assert explain(WorkerFailure(detail="eager died")) == ("not judged, and no fault of the candidate: eager died",)
