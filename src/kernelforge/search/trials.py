"""From a build to a trial. Owns `judged`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from kernelforge.build.types import Artifact, BuildFailure
from kernelforge.cards.examples import ExampleStore
from kernelforge.cards.types import VariantRecord
from kernelforge.evaluate.types import Trial
from kernelforge.generate.types import Candidate
from kernelforge.search.duplicates import same_binary
from kernelforge.search.types import Judge, Node


def judged(
    candidate: Candidate,
    result: Artifact | BuildFailure,
    *,
    started: float,
    seconds: float,
    record: VariantRecord,
    nodes: Sequence[Node],
    examples: ExampleStore,
    judge: Judge,
) -> Trial:
    """The trial of a candidate that was built. The judge is not asked where the outcome is known.

    Args:
        started, seconds: of the build; its time is part of the trial's. nodes: of the variant.
    """
    known = result if isinstance(result, BuildFailure) else same_binary(result, nodes)
    if known is not None:
        return Trial(candidate=candidate, outcome=known, started=started, seconds=seconds)
    trial = judge.evaluate(candidate, record, examples, built=result)
    return replace(trial, seconds=trial.seconds + seconds)
