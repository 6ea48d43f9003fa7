"""One case on the runner: deaths, launch errors, canaries, changed inputs, values, repeats. Loads torch.

Owns the order in which evidence counts: how the process ended, what it wrote where it must not, what it left unwritten,
and only then numbers. The runner poisons outputs before each call, so what is not written shows.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from kernelforge.cards.types import Variant
from kernelforge.errors import HarnessError
from kernelforge.runner.protocol import WORKSPACE, RunnerDeath, RunReply, Session, TimeReply
from kernelforge.verify.compare import Match, Mismatch, compare
from kernelforge.verify.prepare import PreparedCase, lower_precisions
from kernelforge.verify.types import ErrorStatistics, Rejected, RejectReason

POISONS = (0x7F, 0xFF, 0x3F)
"""Bytes with one of which the runner fills outputs before a call."""

PAGE, SAMPLED_PAGES = 4096, 1024

_DEATHS = {
    "crash": RejectReason.CRASH, "timeout": RejectReason.TIMEOUT, "oom": RejectReason.OUT_OF_MEMORY,
    "protocol": RejectReason.TAMPER, "load": RejectReason.CRASH,
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class CasePassed:
    """The candidate is right on a case.

    Attributes:
        statistics: of the output that is worst by error relative to the scale.
        bitwise: all outputs equal eager's bit for bit; repeatable: every call on the same input wrote the same bits.
    """

    statistics: ErrorStatistics
    bitwise: bool
    repeatable: bool = True


CaseResult: TypeAlias = "CasePassed | Rejected"


@dataclass(slots=True)
class History:
    """What a session has shown so far, to tell stale outputs from wrong ones.

    Attributes:
        passed: calls that were right. outputs: index and fingerprint of every output that they wrote.
    """

    passed: int = 0
    outputs: set[tuple[int, int, int]] = field(default_factory=set)

    def keep(self, outputs: Sequence[bytearray]) -> None:
        """Remember right outputs; one that is a single repeated byte says nothing."""
        for index, data in enumerate(outputs):
            if data and not _single_byte(data, data[0]):
                self.outputs.add(_fingerprint(index, data))

    def knows(self, index: int, data: bytearray) -> bool:
        return _fingerprint(index, data) in self.outputs


def _fingerprint(index: int, data: bytearray) -> tuple[int, int, int]:
    """Of some pages all over a large output: it only has to tell one output from others of random inputs."""
    view, step = memoryview(data), max(len(data) // SAMPLED_PAGES, PAGE)
    checksum = 0
    for start in range(0, len(data), step):
        checksum = zlib.crc32(view[start : start + PAGE], checksum)
    return index, len(data), checksum


def _single_byte(data: bytearray, value: int) -> bool:
    """Whether all bytes are this one. The first page tells nearly always, a count of everything takes long."""
    start = data[:PAGE]
    return start.count(value) == len(start) and data.count(value) == len(data)


def run_case(
    session: Session, variant: Variant, prepared: PreparedCase, history: History, *, repeats: int = 1,
    slot: int = 0,
) -> CaseResult:  # fmt: skip
    """Run a candidate on one case, `repeats` times on the same input, and judge every reply.

    Args:
        slot: of the runner. Buffers of the same sizes as those that the slot held before mostly get their addresses.

    Raises:
        HarnessError: the runner could not do its own part (memory for the buffers, say).
    """
    where = prepared.case.description
    loaded = session.load(slot, prepared.work)
    if isinstance(loaded, RunnerDeath):
        return death(loaded, where)
    if loaded.error:
        return refused(loaded.error, loaded.message, where)
    first: tuple[bytearray, ...] | None = None
    result: CasePassed | None = None
    for _ in range(repeats):
        reply = session.run_slot(slot)
        if isinstance(reply, RunnerDeath):
            return death(reply, where)
        if first is not None and reply.outputs == first and not reply.inputs_changed and not reply.canaries_broken:
            continue
        judged = judge_reply(variant, prepared, reply, history)
        if isinstance(judged, Rejected):
            return judged if result is None else _unsteady(judged)
        # Right, but with other bits: no race that the tolerance shows, and yet not the same each time.
        result = judged if result is None else replace(result, bitwise=False, repeatable=False)
        first = first or reply.outputs
        history.passed += 1
    assert result is not None and first is not None
    history.keep(first)
    if slot:
        session.unload(slot)
    return result


def judge_reply(
    variant: Variant, prepared: PreparedCase, reply: RunReply | TimeReply, history: History,
    outputs: Sequence[bytearray] | None = None,
) -> CaseResult:  # fmt: skip
    """Judge what one call left behind.

    Args:
        outputs: the outputs if the reply is of a timing, whose sets are judged one by one.
    """
    where = prepared.case.description
    if reply.error:
        status = f" (status {reply.status})" if reply.status else ""
        return refused(reply.error, f"{reply.message}{status}", where)
    if reply.canaries_broken:
        return _out_of_bounds(variant, reply.canaries_broken, where)
    if reply.inputs_changed:
        names = ", ".join(variant.tensor_names()[i] for i in reply.inputs_changed)
        detail = f"the kernel wrote to its input {names}; inputs are read-only for this variant"
        return Rejected(reason=RejectReason.MUTATED_INPUT, case=where, detail=detail)
    if outputs is None:
        assert isinstance(reply, RunReply)
        outputs = reply.outputs
    return judge_values(variant, prepared, outputs, history)


def judge_values(
    variant: Variant, prepared: PreparedCase, outputs: Sequence[bytearray], history: History
) -> CaseResult:
    """Compare all outputs of one call; a wrong one that was not written, or is an earlier one, is named so."""
    tensors = prepared.tensors_of(outputs)
    matches = []
    for index, (expected, got) in enumerate(zip(prepared.expected, tensors, strict=True)):
        verdict = compare(expected, got)
        if isinstance(verdict, Match):
            matches.append(verdict)
            continue
        unwritten = _unwritten(variant, prepared, index, outputs, history)
        if unwritten is not None:
            return unwritten
        emulations = [e[index] for e in lower_precisions(variant, prepared)] if _numeric(verdict) else []
        verdict = compare(expected, got, emulations=emulations)
        assert isinstance(verdict, Mismatch)
        name = f"output {index}: " if len(tensors) > 1 else ""
        return Rejected(
            reason=verdict.reason, case=prepared.case.description, detail=name + verdict.detail,
            worst_abs=verdict.worst_abs,
        )  # fmt: skip
    if not matches:
        raise HarnessError(f"{variant.label} has no output to compare")
    worst = max(matches, key=lambda m: m.worst)
    return CasePassed(statistics=worst.statistics, bitwise=all(m.bitwise for m in matches))


def death(end: RunnerDeath, where: str) -> Rejected:
    """A dead runner as a verdict: the binary's own doing, since the runner itself was proven with others."""
    said = f"; it wrote: {end.output.strip()[-300:]}" if end.output.strip() else ""
    return Rejected(reason=_DEATHS[end.kind], case=where, detail=f"{end.detail}{said}")


def refused(error: str, message: str, where: str) -> Rejected:
    """A call that was not made or failed, as a verdict.

    Raises:
        HarnessError: the fault is the judge's or the machine's.
    """
    if error in ("memory", "device", "request"):
        raise HarnessError(f"the runner could not run the case ({error}): {message}")
    if error == "meta":
        return Rejected(reason=RejectReason.WRONG_META, case=where, detail=message)
    reason = RejectReason.OUT_OF_MEMORY if error == "workspace" else RejectReason.LAUNCH_ERROR
    what = {"workspace": "the workspace could not be had", "async": "the device failed after the launch"}
    return Rejected(reason=reason, case=where, detail=f"{what.get(error, 'launch returned an error')}: {message}")


def _numeric(verdict: Mismatch) -> bool:
    return verdict.reason is RejectReason.WRONG_VALUE and verdict.worst_abs is not None


def _out_of_bounds(variant: Variant, broken: Sequence[int], where: str) -> Rejected:
    names = [*variant.tensor_names(), *variant.output_names()] if variant.outputs else [*variant.tensor_names()]
    text = ", ".join("the workspace" if i == WORKSPACE else names[i] for i in broken)
    detail = f"the kernel wrote outside of {text}; check the last block and sizes that no vector width divides"
    return Rejected(reason=RejectReason.OUT_OF_BOUNDS, case=where, detail=detail)


def _unwritten(
    variant: Variant, prepared: PreparedCase, index: int, outputs: Sequence[bytearray], history: History
) -> Rejected | None:
    data, where = outputs[index], prepared.case.description
    if variant.mutates or not data:
        return None
    if any(_single_byte(data, poison) for poison in POISONS):
        reason = RejectReason.STALE_OUTPUT if history.passed else RejectReason.WRONG_VALUE
        again = " although it did on earlier calls: every call must compute" if history.passed else ""
        return Rejected(reason=reason, case=where, detail=f"the kernel did not write its output{again}")
    if history.knows(index, data):
        detail = "the output is that of an earlier call on other inputs: nothing may be kept between calls"
        return Rejected(reason=RejectReason.STALE_OUTPUT, case=where, detail=detail)
    return None


def _unsteady(judged: Rejected) -> Rejected:
    """A later call on the very input that an earlier call got right is wrong: a race, unless nothing was written."""
    if judged.reason not in (RejectReason.WRONG_VALUE, RejectReason.PRECISION_DOWNGRADE):
        return judged
    return Rejected(
        reason=RejectReason.NONDETERMINISTIC, case=judged.case, worst_abs=judged.worst_abs,
        detail=f"calls on the same input differ beyond the tolerance (a race or uninitialised memory); {judged.detail}",
    )  # fmt: skip
