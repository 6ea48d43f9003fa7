"""All cases of one candidate, one after the other, until the first that it fails. Loads torch.

The order is cheap before dear: first the case that has probes (see `probes`), thrice on the same input, and its probes,
each on the same addresses right after the case itself; the case once more on other addresses; then each case once, from
the smallest on, the largest thrice (races need size), and at the end the first case again: a kernel that keeps
something between calls, or breaks its own state, shows there. A failure that looks like arithmetic in a lower precision
is only called so if most failing cases do: work that is left out may look like rounding on one input, and like nothing
of the sort on the next.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from typing import TypeAlias

from kernelforge.cards.types import Variant
from kernelforge.runner.protocol import RunnerDeath, Session
from kernelforge.verify.checks.execution import CasePassed, History, death, judge_reply, run_case
from kernelforge.verify.checks.strays import strays_of
from kernelforge.verify.prepare import PreparedCase
from kernelforge.verify.types import Accepted, ErrorStatistics, Rejected, RejectReason, Verdict

REPEATS = 3
SHORT_RUNS = 3
"""After many calls in a row some few more, on what those left: what skips calls may have been lucky at the end."""
NO_ERROR = ErrorStatistics(max_abs=0.0, rms=0.0, eager_max_abs=0.0, eager_rms=0.0)


def verify(session: Session, variant: Variant, cases: Sequence[PreparedCase]) -> Verdict:
    """Run a candidate on every case, and on the first once more; the first failure decides (but see the module).

    Raises:
        HarnessError: a fault of the judge or the machine.
    """
    ordered = sorted(cases, key=lambda c: (not c.probes, c.case.is_edge, c.size_bytes))
    history, passed = History(), []
    failures: list[Rejected] = []
    voted: list[PreparedCase] = []
    for prepared, repeats, slot in _steps(ordered):
        if failures and (slot or prepared in voted or prepared in ordered[0].probes):
            continue  # each case has one vote on what the failures have in common, and a probe is no case of its own
        voted.append(prepared)
        result = run_case(session, variant, prepared, history, repeats=repeats, slot=slot)
        if isinstance(result, CasePassed):
            passed.append(result)
            continue
        wrong = result.reason in (RejectReason.WRONG_VALUE, RejectReason.PRECISION_DOWNGRADE)
        if not wrong or not (failures or result.reason is RejectReason.PRECISION_DOWNGRADE):
            return result
        failures.append(result)
    if failures:
        return _downgrade_or_wrong(failures)
    strays = strays_of(session.pid, in_torch=session.in_torch)
    if strays is not None:
        return strays
    return Accepted(
        cases=len(ordered), worst=_worst(passed), bitwise=all(p.bitwise for p in passed),
        repeatable=all(p.repeatable for p in passed),
    )  # fmt: skip


def replay(session: Session, variant: Variant, cases: Sequence[PreparedCase]) -> Rejected | None:
    """The probes alone, on a session that has made many calls: what a kernel does only once it is no longer tested.

    Raises:
        HarnessError: as `verify`.
    """
    history = History()
    for base in (c for c in cases if c.probes):
        for prepared, repeats, slot in _replayed(base):
            result = run_case(session, variant, prepared, history, repeats=repeats, slot=slot)
            if isinstance(result, Rejected):
                return result
    return None


Step: TypeAlias = "tuple[PreparedCase, int, int]"


def _steps(ordered: Sequence[PreparedCase]) -> Iterator[Step]:
    """Cases with their repeats and the slot to run them in."""
    first, *others = ordered
    yield first, REPEATS, 0
    if first.probes:
        yield from _replayed(first)
    for position, prepared in enumerate(others, start=2):
        # The largest, unless the first, which was repeated, is as large.
        repeated = position == len(ordered) and prepared.size_bytes > first.size_bytes
        yield prepared, REPEATS if repeated else 1, 0
    yield first, 1, 0


def _replayed(base: PreparedCase) -> Iterator[Step]:
    for probe in base.probes:
        yield base, 1, 0
        yield probe, 1, 0
    # Slot 0 still holds the last probe, so these are other addresses, with content that was seen before.
    yield base, 1, 1


def _downgrade_or_wrong(failures: Sequence[Rejected]) -> Rejected:
    """The first failure of the kind that most of them are of. An inf or nan more or less votes for neither."""
    unexplained = [f for f in failures if f.reason is RejectReason.WRONG_VALUE and f.worst_abs is not None]
    explained = [f for f in failures if f.reason is RejectReason.PRECISION_DOWNGRADE]
    return unexplained[0] if len(unexplained) > len(explained) else explained[0]


def recheck(session: Session, variant: Variant, cases: Sequence[PreparedCase], *, calls: int) -> Verdict:
    """Many calls in a row over several cases of loaded buffers; every set's outputs after its last call are judged.

    Args:
        cases: at most 8; they rotate call by call, so each call sees other content than the one before.
    """
    where = f"after {calls} calls in a row"
    for slot, prepared in enumerate(cases):
        loaded = session.load(slot, prepared.work)
        if isinstance(loaded, RunnerDeath):
            return death(loaded, where)
    passed: list[CasePassed] = []
    for turn, count in enumerate((calls, *[len(cases)] * SHORT_RUNS)):
        # A number of calls that nobody can count on: which call is the last is not to be known in advance.
        reply = session.time_slots(
            0, len(cases), iterations=count + secrets.randbelow(16), warmup=0, collect=True, prepare=turn == 0
        )
        if isinstance(reply, RunnerDeath):
            return death(reply, where)
        for position, prepared in enumerate(cases):
            outputs = reply.outputs[position] if not reply.error else ()
            result = judge_reply(variant, prepared, reply, History(passed=1), outputs)
            if isinstance(result, Rejected):
                return Rejected(
                    reason=result.reason, case=f"{result.case}, {where}", detail=result.detail,
                    worst_abs=result.worst_abs,
                )  # fmt: skip
            passed.append(result)
    for slot in range(len(cases)):
        session.unload(slot)
    return Accepted(cases=len(cases), worst=_worst(passed), bitwise=all(p.bitwise for p in passed))


def _worst(passed: Sequence[CasePassed]) -> ErrorStatistics:
    """The case with the largest error in multiples of eager's own (of the output's unit where eager has none)."""
    return max(
        (p.statistics for p in passed), key=lambda s: s.max_abs / (s.eager_max_abs or 1.0), default=NO_ERROR
    )  # fmt: skip
