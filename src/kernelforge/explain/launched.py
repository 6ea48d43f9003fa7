"""Which GPU kernels a candidate's call really launches, by NVIDIA's profiler around the runner. Loads torch.

What the binary holds says what it could launch; this says what it did. A kernel that ran and is not one of the binary's
own came from somewhere else: a library, or code that was made at run time.
"""

from __future__ import annotations

import csv
import shutil
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from kernelforge.build.types import Artifact
from kernelforge.cards.types import Variant
from kernelforge.executors.types import Limits
from kernelforge.runner.protocol import RunnerDeath
from kernelforge.runner.sanitizers import trouble
from kernelforge.runner.session import RunnerSession
from kernelforge.settings import Settings
from kernelforge.verify.prepare import PreparedCase

LIMITS = Limits(wall_s=60.0, memory_bytes=8 << 30)
_NAME, _LAUNCH = "Kernel Name", "ID"


@dataclass(frozen=True, slots=True, kw_only=True)
class Launched:
    """What one call launched.

    Attributes:
        kernels: (mangled name, launches), in the order of their first launch.
        unavailable: why nothing is known, or "".
    """

    kernels: tuple[tuple[str, int], ...] = ()
    unavailable: str = ""


def find_profiler(settings: Settings) -> Path | None:
    """Nsight Compute's `ncu`: on the PATH or in CUDA_HOME; None if it is in neither place."""
    on_path = shutil.which("ncu")
    places = [Path(on_path)] if on_path else []
    if settings.cuda_home:
        places.append(Path(settings.cuda_home) / "bin" / "ncu")
    return next((place for place in places if place.is_file()), None)


def profiler_command(profiler: Path) -> tuple[str, ...]:
    """`ncu`, to be put before a program's own command line: one line of CSV for each launch, and no counters."""
    return (
        str(profiler), "--csv", "--metrics", "launch__grid_size", "--print-kernel-base", "mangled",
        "--clock-control", "none",
    )  # fmt: skip


def launched_kernels(
    artifact: Artifact, variant: Variant, prepared: PreparedCase,
    *, profiler: Path, device: Literal["cpu", "cuda"], threads: int, settings: Settings,
) -> Launched:  # fmt: skip
    """Call a binary once on a case under the profiler.

    Raises:
        HarnessError: the runner could not do its own part. EnvironmentMissing: it cannot be built.
    """
    with RunnerSession(
        artifact.path, device=device, limits=LIMITS, threads=threads, settings=settings,
        wrapper=profiler_command(profiler),
    ) as session:  # fmt: skip
        loaded = session.load(0, prepared.work)
        reply = loaded if isinstance(loaded, RunnerDeath) or loaded.error else session.run_slot(0)
        end = session.finish()
    said = reply.detail if isinstance(reply, RunnerDeath) else reply.message if reply.error else ""
    kernels = Counter(kernels_of(end.output))
    if not kernels:
        reason = trouble(end.output, said or "it named no kernel")
        return Launched(unavailable=f"{profiler.name} on {variant.label}: {reason}")
    return Launched(kernels=tuple(kernels.items()))


def kernels_of(output: str) -> Iterator[str]:
    """The name of each launch in the profiler's output, between whatever else the program printed."""
    lines = output.splitlines()
    start = next((i for i, line in enumerate(lines) if line.startswith(f'"{_LAUNCH}",') and _NAME in line), None)
    if start is None:
        return
    seen = set()
    for row in csv.DictReader(lines[start:]):
        launch, name = row.get(_LAUNCH), row.get(_NAME)
        # One row a metric; rows of units and of other output have no number.
        if launch and launch.isdigit() and name and launch not in seen:
            seen.add(launch)
            yield name
