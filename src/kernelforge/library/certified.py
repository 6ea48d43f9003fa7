"""What an export knows of a kernel that it takes into use, as the library keeps it. Pure but for the date."""

from __future__ import annotations

import time

from kernelforge.benchmark.types import Interval
from kernelforge.cards.types import Variant
from kernelforge.evaluate.types import Scored
from kernelforge.generate.types import Candidate
from kernelforge.library.proposals import torch_minor
from kernelforge.library.types import Origin, StoredKernel, abi_of


def certified_kernel(
    variant: Variant, candidate: Candidate, scored: Scored, *, least_elements: int, dispatch: Interval, prelude: str,
    toolchain: str, device_name: str, model: str,
) -> StoredKernel:  # fmt: skip
    """A kernel for the library.

    Args:
        variant: the captured one. prelude: its own.
        toolchain: `Backend.brief` of what built and timed it. device_name: of the GPU, "" on the CPU.
        model: the name of the model that it was made for.
    """
    target = scored.artifact.target
    return StoredKernel(
        variant=variant, least_elements=least_elements, source=candidate.source, backend=candidate.backend,
        abi=abi_of(prelude), generator=candidate.generator, notes=candidate.notes, schedule=candidate.schedule,
        language_model=candidate.model, model=model,
        origin=Origin(
            device=f"{device_name}, {target}" if device_name else target, toolchain=toolchain, torch=torch_minor()
        ),
        speedup=scored.measurement.speedup, dispatch=dispatch, certified=time.time(),
    )  # fmt: skip
