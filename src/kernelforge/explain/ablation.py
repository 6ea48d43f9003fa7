"""A candidate without its `launch`: the same source, with `launch` replaced by a stub that does nothing. Loads torch.

If outputs are written although `launch` does nothing, something else writes them: a constructor of the candidate, the
judge's own buffers, a neighbour. Run beside the candidate itself on the very same case, the stub shows that nothing but
the candidate's `launch` made the output.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import torch

from kernelforge.build.abi import launch_parameters
from kernelforge.build.types import Artifact, Backend, BuildFailure
from kernelforge.cards.examples import ExampleStore
from kernelforge.cards.types import Variant, VariantRecord
from kernelforge.errors import HarnessError
from kernelforge.executors.types import Limits
from kernelforge.generate.types import Candidate
from kernelforge.runner.eager import EagerWorker
from kernelforge.runner.protocol import BufferSet, RunnerDeath
from kernelforge.runner.session import RunnerSession
from kernelforge.settings import Settings
from kernelforge.verify.cases import CaseMaker, CasePlan
from kernelforge.verify.checks.execution import POISONS, History, death, judge_reply, refused
from kernelforge.verify.prepare import EagerBaseline, PreparedCase, prepare
from kernelforge.verify.sizes import SizeChoice, footprint_bytes
from kernelforge.verify.types import Rejected

LIMITS = Limits(wall_s=20.0, memory_bytes=4 << 30)
DISTRIBUTION = "normal"
_RENAMED = "kf_ablated_launch"
_DIRECTIVE = "// kforge:"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ablation:
    """What the stub and the candidate did on one case.

    Attributes:
        case: in words. unwritten: after the stub every output was as the judge had left it.
        stub, candidate: what the judge says of each, "right" or the rejection.
        candidate_right: the candidate itself is right on this case.
    """

    case: str
    unwritten: bool
    stub: str
    candidate: str
    candidate_right: bool

    @property
    def shows_own_work(self) -> bool:
        """Nothing but the candidate's `launch` wrote the outputs."""
        return self.unwritten and self.candidate_right


def ablated(candidate: Candidate, variant: Variant) -> Candidate:
    """The candidate with its `launch` renamed, and a `launch` in its place that returns 0."""
    first, newline, rest = candidate.source.lstrip().partition("\n")
    # A directive of the build counts only on the first line.
    head, body = (first + newline, rest) if first.startswith(_DIRECTIVE) else ("", candidate.source)
    parameters = ", ".join(launch_parameters(variant, candidate.backend))
    source = (
        f'{head}#define launch {_RENAMED}\n{body}\n#undef launch\nextern "C" int launch({parameters}) {{ return 0; }}\n'
    )
    return replace(candidate, source=source, generator="ablation", parent=candidate.id)


def ablate(
    artifact: Artifact, candidate: Candidate, record: VariantRecord, examples: ExampleStore, *, backend: Backend,
    eager: EagerWorker, device: Literal["cpu", "cuda"], settings: Settings, threads: int, limits: Limits = LIMITS,
) -> Ablation | BuildFailure:  # fmt: skip
    """Run a candidate and its stub on one fresh case of the smallest observed size.

    Args:
        artifact: the candidate's stored binary. eager: the baseline. threads: of the candidate.

    Raises:
        EnvironmentMissing: no compiler, no GPU. HarnessError: the case could not be made or run.
    """
    stub = backend.build(ablated(candidate, record.variant), record.variant)
    if isinstance(stub, BuildFailure):
        return stub
    prepared = smallest_case(record, examples, EagerBaseline(eager), torch.device(device))
    replies = []
    for binary in (stub, artifact):
        with RunnerSession(
            binary.path, device=device, limits=limits, threads=threads, settings=settings
        ) as session:  # fmt: skip
            replies.append(_run(session, record.variant, prepared))
    (stub_says, left), (candidate_says, _) = replies
    return Ablation(
        case=prepared.case.description, unwritten=untouched(prepared.work, left), stub=stub_says,
        candidate=candidate_says, candidate_right=candidate_says == "right",
    )  # fmt: skip


def untouched(work: BufferSet, outputs: tuple[bytearray, ...]) -> bool:
    """Whether a call left every output as it was given: poisoned throughout, or for what changes in place, unchanged.

    Args:
        outputs: of a call on `work`; none at all (the call failed) shows nothing.
    """
    given = [b for b in work.buffers if b.kind != "input"]
    if len(outputs) != len(given):
        return False
    return all(
        bytes(out) == bytes(buffer.data) if buffer.data is not None else any(out.count(p) == len(out) for p in POISONS)
        for out, buffer in zip(outputs, given, strict=True)
    )


def smallest_case(
    record: VariantRecord, examples: ExampleStore, baseline: EagerBaseline, device: torch.device
) -> PreparedCase:  # fmt: skip
    """A fresh case of the smallest observed size.

    Raises:
        HarnessError: eager or the float64 evaluation fails there.
    """
    maker = CaseMaker(record, examples, device)
    point = min(record.points, key=lambda p: footprint_bytes(record.variant, p.dims))
    choice = SizeChoice(dims=point.dims, scalars=point.scalars, why="observed", example=point.example)
    prepared = prepare(record.variant, maker.draw(CasePlan(choice=choice, distribution=DISTRIBUTION)), baseline)
    if prepared is None:
        raise HarnessError(f"no case of {record.variant.label} could be made", hint="capture the model again")
    return prepared


def _run(session: RunnerSession, variant: Variant, prepared: PreparedCase) -> tuple[str, tuple[bytearray, ...]]:
    """What the judge says of one call, and the outputs that it left."""
    where = prepared.case.description
    loaded = session.load(0, prepared.work)
    if isinstance(loaded, RunnerDeath):
        return _words(death(loaded, where)), ()
    if loaded.error:
        return _words(refused(loaded.error, loaded.message, where)), ()
    reply = session.run_slot(0)
    if isinstance(reply, RunnerDeath):
        return _words(death(reply, where)), ()
    judged = judge_reply(variant, prepared, reply, History())
    return (_words(judged) if isinstance(judged, Rejected) else "right"), reply.outputs


def _words(rejected: Rejected) -> str:
    return f"{rejected.reason}: {rejected.detail}"
