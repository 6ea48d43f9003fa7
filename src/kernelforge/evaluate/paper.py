"""The original paper's way of judging, shown beside ours and never used for any decision. Loads torch.

Captured inputs only; right if |x - y| <= 1e-2 + 1e-1 |y| (equal for outputs that are no floats), y being eager's; time
is the warm mean of 100 back-to-back calls on one set of buffers, eager's first and then the candidate's. Why none of
this admits a kernel: a tenth of the value passes for right, what fails on other inputs is not seen, and two means taken
one after the other know nothing of the noise.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from kernelforge.audit.symbols import audit_binary
from kernelforge.benchmark.slot import timing_slot
from kernelforge.build.types import Artifact
from kernelforge.cards.examples import ExampleStore
from kernelforge.cards.types import SizePoint, VariantRecord
from kernelforge.errors import DeviceBusy, HarnessError
from kernelforge.executors.types import Limits
from kernelforge.runner.eager import EagerWorker
from kernelforge.runner.protocol import BufferSet, RunnerDeath
from kernelforge.runner.session import RunnerSession
from kernelforge.settings import Settings
from kernelforge.verify.cases import CAPTURED, Case, CaseMaker, CasePlan
from kernelforge.verify.layout import from_bytes
from kernelforge.verify.prepare import TIMING_ALIGNMENT, buffers_of, named_values
from kernelforge.verify.sizes import SizeChoice
from kernelforge.verify.types import Rejected

ABSOLUTE, RELATIVE = 1e-2, 1e-1
WARMUP_CALLS, TIMED_CALLS = 25, 100
MAX_POINTS = 12
LIMITS = Limits(wall_s=120.0, memory_bytes=4 << 30)
"""125 calls of a slow operator are one request."""
FOR_COMPARISON = "shown for comparison; no decision uses it"


@dataclass(frozen=True, slots=True, kw_only=True)
class PaperResult:
    """What the paper's protocol says.

    Attributes:
        correct: None if it could not be tried. speedup: eager's mean over the candidate's, weighted by calls; None
            unless correct.
        note: what was compared, or why nothing was.
    """

    correct: bool | None
    speedup: float | None
    note: str


def paper_protocol(
    artifact: Artifact, record: VariantRecord, examples: ExampleStore, *, eager: EagerWorker,
    device: Literal["cpu", "cuda"], settings: Settings, threads: int, limits: Limits = LIMITS,
) -> PaperResult:  # fmt: skip
    """Try a built candidate as the paper does. A fault of ours or of the machine is a note, not an exception.

    Args:
        eager: the baseline, with the same threads. threads: of the candidate.

    Raises:
        EnvironmentMissing: no compiler for the runner.
    """
    audited = audit_binary(artifact.path, device=device)
    if isinstance(audited, Rejected):
        return _untried(f"not run: {audited.detail}")
    maker = CaseMaker(record, examples, torch.device(device))
    points = [p for p in record.points if maker.has_example(_choice(p))][:MAX_POINTS]
    if not points:
        return _untried("no captured inputs of this variant are stored")
    try:
        with (
            timing_slot(settings, device),
            RunnerSession(artifact.path, device=device, limits=limits, threads=threads, settings=settings) as session,
        ):
            return _try_points(eager, session, maker, points)
    except (HarnessError, DeviceBusy) as error:
        return _untried(f"could not be tried: {error}")


def close_as_in_paper(got: torch.Tensor, want: torch.Tensor) -> bool:
    """The paper's comparison of one output: |got - want| <= 1e-2 + 1e-1 |want|, or equal if it is no float.

    Args:
        got, want: of the same shape and dtype.
    """
    if not want.dtype.is_floating_point:
        return torch.equal(got, want)
    return torch.allclose(got.double(), want.double(), rtol=RELATIVE, atol=ABSOLUTE)


class _Wrong(Exception):
    """The candidate fails on a captured input."""


def _try_points(
    eager: EagerWorker, session: RunnerSession, maker: CaseMaker, points: Sequence[SizePoint]
) -> PaperResult:
    eager_us = candidate_us = 0.0
    calls = sum(p.calls for p in points)
    try:
        for point in points:
            means = _try_point(eager, session, maker, point)
            eager_us += point.calls / calls * means[0]
            candidate_us += point.calls / calls * means[1]
    except _Wrong as wrong:
        return PaperResult(correct=False, speedup=None, note=f"{wrong}; {FOR_COMPARISON}")
    inputs = "1 captured input" if len(points) == 1 else f"{len(points)} captured inputs"
    note = (
        f"{inputs}, mean of {TIMED_CALLS} warm calls: eager {eager_us:.3g} us, candidate {candidate_us:.3g} us; "
        f"{FOR_COMPARISON}"
    )
    return PaperResult(correct=True, speedup=eager_us / candidate_us if candidate_us > 0 else None, note=note)


def _try_point(eager: EagerWorker, session: RunnerSession, maker: CaseMaker, point: SizePoint) -> tuple[float, float]:
    """Mean microseconds of a call, eager's and the candidate's.

    Raises:
        _Wrong: an output is not close enough, or the candidate failed.
    """
    variant = maker.record.variant
    case = maker.draw(CasePlan(choice=_choice(point), distribution=CAPTURED))
    work = buffers_of(variant, case, alignment=TIMING_ALIGNMENT)
    dims, scalars = named_values(variant, work)
    eager.load(0, variant.to_json(), dims, scalars, work.buffers)
    wanted = eager.run_slot(0).outputs
    _compare(case, _outputs(session, work), wanted)
    baseline = eager.time_slots(0, 1, iterations=TIMED_CALLS, warmup=WARMUP_CALLS, batch=True)
    reply = session.time_slots(0, 1, iterations=TIMED_CALLS, warmup=WARMUP_CALLS, batch=True)
    if isinstance(reply, RunnerDeath):
        raise _Wrong(f"{reply.kind} while timed: {reply.detail}")
    if reply.error:
        raise _Wrong(f"{reply.error} while timed: {reply.message}")
    eager.unload(0)
    session.unload(0)
    return baseline.total_ns / TIMED_CALLS / 1e3, reply.total_ns / TIMED_CALLS / 1e3


def _outputs(session: RunnerSession, work: BufferSet) -> Sequence[bytearray]:
    loaded = session.load(0, work)
    if isinstance(loaded, RunnerDeath):
        raise _Wrong(f"{loaded.kind}: {loaded.detail}")
    if loaded.error:
        raise HarnessError(f"the runner could not load the buffers: {loaded.message}")
    reply = session.run_slot(0)
    if isinstance(reply, RunnerDeath):
        raise _Wrong(f"{reply.kind}: {reply.detail}")
    if reply.error:
        raise _Wrong(f"{reply.error}: {reply.message}")
    return reply.outputs


def _compare(case: Case, got: Sequence[bytearray], wanted: Sequence[bytearray]) -> None:
    device = torch.device("cpu")
    for index, (mine, eagers, spec) in enumerate(zip(got, wanted, case.outputs, strict=True)):
        if not close_as_in_paper(from_bytes(mine, spec, device), from_bytes(eagers, spec, device)):
            raise _Wrong(f"output {index} is not within {ABSOLUTE:g} + {RELATIVE:g} |eager's| at {case.description}")


def _choice(point: SizePoint) -> SizeChoice:
    return SizeChoice(dims=point.dims, scalars=point.scalars, why="observed", example=point.example)


def _untried(note: str) -> PaperResult:
    return PaperResult(correct=None, speedup=None, note=f"{note}; {FOR_COMPARISON}")
