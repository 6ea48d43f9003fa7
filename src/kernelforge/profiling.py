"""What limits a stored kernel, by NVIDIA's profiler around the runner: the verb behind `kforge profile`. Loads torch.

A profile is of one binary on one kind of GPU, at the size where most time is lost, and is kept in the project. Whatever
stands in its way (no profiler, no permission, no GPU) is told with what to do about it, and is no error.
"""

from __future__ import annotations

import re
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from kernelforge.audit.types import TORCH_TIER, AuditKind
from kernelforge.benchmark.slot import timing_slot
from kernelforge.benchmark.types import PointTiming
from kernelforge.cards.types import VariantRecord
from kernelforge.errors import DeviceBusy, EnvironmentMissing, HarnessError, NotFound
from kernelforge.evaluate.types import Scored
from kernelforge.executors.types import Limits
from kernelforge.explain.launched import find_profiler
from kernelforge.explain.ncu import MOST_LAUNCHES, ncu_command, parse_ncu, unknown_metrics
from kernelforge.explain.profile import KernelProfile, Profile, explain_profile
from kernelforge.explain.speed import costliest, scalars_at
from kernelforge.report.profiles import ProfiledRow, ProfileReport
from kernelforge.runner.protocol import BufferSet, RunnerDeath
from kernelforge.runner.sanitizers import trouble
from kernelforge.runner.session import RunnerSession
from kernelforge.search.lineage import best_node
from kernelforge.search.types import Node
from kernelforge.search.winners import find_node
from kernelforge.settings import Settings
from kernelforge.store.project import Project

LIMITS = Limits(wall_s=60.0, memory_bytes=8 << 30)
"""Of one call under the profiler, which runs each kernel some twenty times."""
CALLS = 2
"""The first one warms up; what the last one launches is reported."""
TRIES = 4
"""Once more without the metrics that a version of ncu does not know."""

_FIXES: tuple[tuple[str, str, str], ...] = (
    (
        "ERR_NVGPUCTRPERM", "this user may not read the GPU's counters",
        "run as root, or load the driver with NVreg_RestrictProfilingToAdminUsers=0 "
        "(developer.nvidia.com/ERR_NVGPUCTRPERM)",
    ),
    (
        "LibraryNotLoaded", "the profiler cannot reach the GPU's counters here, as in a sandbox",
        "profile on a machine, or in a container, with direct access to the GPU",
    ),
    (
        "ERR_NVGPUBUSY|resource.*(?:unavailable|in use)|driver resource", "another profiler uses the GPU",
        "end it (DCGM: dcgmi profiling --pause), and profile again",
    ),
)  # fmt: skip
"""What ncu prints -> why, and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NotProfiled:
    """Why there is no profile, and what to do about it, if anything."""

    reason: str
    fix: str = ""

    @property
    def text(self) -> str:
        return f"{self.reason}; {self.fix}" if self.fix else self.reason


Kernels: TypeAlias = "tuple[KernelProfile, ...] | NotProfiled"


def profile_trials(
    project: Project, variant: str, trials: Sequence[str], *, again: bool = False, on_event: Callable[[str], None],
    settings: Settings,
) -> ProfileReport:  # fmt: skip
    """Profile trials of a variant, or say what is known of them.

    Args:
        trials: numbers, or unique prefixes of their nodes' ids; none for the best one. again: measure what is known.

    Raises:
        NotFound: no such variant or trial, or none is accepted. ProjectError: a stored binary is damaged.
    """
    record = project.record(variant)
    nodes = project.nodes(record.variant.id)
    best = best_node(nodes)
    if not trials and best is None:
        raise NotFound(
            f"{record.variant.label} has no accepted kernel", hint=f"make one: kforge forge {record.variant.label}"
        )
    chosen = [find_node(record, nodes, name) for name in trials] or [n for n in (best,) if n is not None]
    rows = []
    for node in chosen:
        on_event(f"{record.variant.label} #{node.number}")
        found = profile_node(project, record, node, again=again, settings=settings)
        if isinstance(found, NotProfiled):
            rows.append(ProfiledRow(node=node.id, number=node.number, why=found.reason, fix=found.fix))
        else:
            lines = explain_profile(found, record)
            rows.append(ProfiledRow(node=node.id, number=node.number, lines=lines, profile=found))
    return ProfileReport(label=record.variant.label, variant=record.variant.id, rows=tuple(rows))


def profile_node(
    project: Project, record: VariantRecord, node: Node, *, again: bool = False, settings: Settings
) -> Profile | NotProfiled:  # fmt: skip
    """The profile of an accepted node's binary: the one that is kept, or a new one, which then is kept.

    Raises:
        ProjectError: the stored binary or the project is damaged.
    """
    scored = node.outcome
    if not isinstance(scored, Scored):
        return NotProfiled(reason=f"only accepted kernels are profiled, and this is a {node.kind.replace('_', ' ')}")
    if project.device != "cuda":
        return NotProfiled(reason="only kernels of a GPU are profiled")
    if scored.audit.kind is AuditKind.TORCH:
        return NotProfiled(reason=f"{TORCH_TIER}; it is not profiled", fix="write it for the C ABI")
    gpu = _gpu()
    known = project.profile_of(node)
    # Without a GPU what was measured elsewhere is all there is.
    if known is not None and gpu in ("", known.device) and not (again and gpu):
        return known
    if not gpu:
        return NotProfiled(reason="no CUDA device is available to torch", fix="run it on the machine with the GPU")
    profiler = find_profiler(settings)
    if profiler is None:
        return NotProfiled(
            reason="ncu was not found", fix="install Nsight Compute (it is in the CUDA toolkit), or set CUDA_HOME"
        )
    if not scored.measurement.points:
        return NotProfiled(reason="it was timed at no size")
    return _measure(project, record, scored, profiler=profiler, gpu=gpu, settings=settings)


def _measure(
    project: Project, record: VariantRecord, scored: Scored, *, profiler: Path, gpu: str, settings: Settings
) -> Profile | NotProfiled:
    point = costliest(scored)
    binary, cold = project.binary(scored.artifact.digest), point.regime == "cold"
    try:
        sets = _buffers(project, record, point)
        with timing_slot(settings, "cuda"):
            kernels = profile_binary(binary, sets, profiler=profiler, cold=cold, device="cuda", settings=settings)
    except (EnvironmentMissing, HarnessError, DeviceBusy) as error:
        return NotProfiled(reason=error.message, fix=error.hint)
    if isinstance(kernels, NotProfiled):
        return kernels
    profile = Profile(device=gpu, dims=dict(point.dims), cold=cold, kernels=kernels, recorded=time.time())
    project.keep_profile(scored.artifact.digest, profile)
    return profile


def profile_binary(
    binary: Path, sets: Sequence[BufferSet], *, profiler: Path, cold: bool, device: Literal["cpu", "cuda"],
    settings: Settings,
) -> Kernels:  # fmt: skip
    """The kernels of the last of `CALLS` calls of a binary, in the order of their launches.

    Args:
        sets: of buffers, which the calls take in turn. cold: every kernel begins with empty caches.

    Raises:
        HarnessError: the runner could not do its own part. EnvironmentMissing: it cannot be built.
    """
    without: frozenset[str] = frozenset()
    for _ in range(TRIES):
        said, text, printed = _under_ncu(
            binary, sets, profiler=profiler, cold=cold, device=device, settings=settings, without=without
        )
        kernels = parse_ncu(text)
        unknown = unknown_metrics(f"{text}\n{printed}") - without
        if kernels or not unknown:
            break
        without |= unknown
    if said or not kernels:
        return _why(f"{text}\n{printed}", said or "it measured no kernel")
    # With fewer launches than it takes at most both calls are there, and the second half is the second one.
    return kernels if len(kernels) >= MOST_LAUNCHES else kernels[len(kernels) // CALLS * (CALLS - 1) :]


def _under_ncu(
    binary: Path, sets: Sequence[BufferSet], *, profiler: Path, cold: bool, device: Literal["cpu", "cuda"],
    settings: Settings, without: frozenset[str],
) -> tuple[str, str, str]:  # fmt: skip
    """What went wrong with the calls or "", the profiler's log, and the last of what was printed."""
    with tempfile.TemporaryDirectory(prefix="kforge-profile-") as folder:
        log = Path(folder) / "ncu.csv"
        with RunnerSession(
            binary, device=device, limits=LIMITS, threads=1, settings=settings,
            wrapper=ncu_command(profiler, log, cold=cold, without=without),
        ) as session:  # fmt: skip
            said = _call(session, sets)
            end = session.finish()
        return said, log.read_text(errors="replace") if log.is_file() else "", end.output


def _call(session: RunnerSession, sets: Sequence[BufferSet]) -> str:
    """Load all sets and call the binary on them in turn; what went wrong, or ""."""
    for slot, work in enumerate(sets):
        loaded = session.load(slot, work)
        if isinstance(loaded, RunnerDeath):
            return _died(loaded)
        if loaded.error:
            return loaded.message
    for call in range(CALLS):
        reply = session.run_slot(call % len(sets))
        if isinstance(reply, RunnerDeath):
            return _died(reply)
        if reply.error:
            return f"{reply.message} ({reply.status})" if reply.status else reply.message
    return ""


def _died(death: RunnerDeath) -> str:
    return f"it took more than {LIMITS.wall_s:.0f} s" if death.kind == "timeout" else death.detail


def _why(output: str, said: str) -> NotProfiled:
    for pattern, reason, fix in _FIXES:
        if re.search(pattern, output):
            return NotProfiled(reason=reason, fix=fix)
    return NotProfiled(reason=f"ncu: {trouble(output, said)}")


def _gpu() -> str:
    """The name of the first GPU, or "" if there is none."""
    import torch

    return str(torch.cuda.get_device_name()) if torch.cuda.is_available() else ""


def _buffers(project: Project, record: VariantRecord, point: PointTiming) -> list[BufferSet]:
    """As the judge times it: captured inputs if there are some, and drawn ones."""
    import torch

    from kernelforge.verify.cases import CAPTURED, CaseMaker, CasePlan
    from kernelforge.verify.prepare import TIMING_ALIGNMENT, buffers_of
    from kernelforge.verify.sizes import SizeChoice

    maker = CaseMaker(record, project.examples, torch.device("cuda"))
    example = next((p.example for p in record.points if dict(p.dims) == dict(point.dims)), "")
    choice = SizeChoice(
        dims=point.dims, scalars=scalars_at(record, point.dims), why="observed", example=example
    )  # fmt: skip
    first = CAPTURED if maker.has_example(choice) else "normal"
    cases = [maker.draw(CasePlan(choice=choice, distribution=d)) for d in (first, "normal")]
    return [buffers_of(record.variant, case, alignment=TIMING_ALIGNMENT) for case in cases]
