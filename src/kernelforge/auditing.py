"""Who really does the work of a stored node: the verb behind `kforge audit`. Loads torch for the ablation."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import cast

from kernelforge.audit.elf import ElfError, read_shared_object
from kernelforge.audit.symbols import audit_binary
from kernelforge.audit.types import TORCH_TIER, AuditKind
from kernelforge.build.backends import get_backend
from kernelforge.build.backends.cuda import find_nvcc
from kernelforge.build.types import Artifact, BuildFailure
from kernelforge.capturing import present_device
from kernelforge.cards.types import VariantRecord
from kernelforge.errors import DeviceBusy, EnvironmentMissing, HarnessError, NotFound
from kernelforge.evaluate.types import Scored
from kernelforge.explain.ablation import ablate, smallest_case
from kernelforge.explain.contents import Contents, find_cuobjdump, read_contents
from kernelforge.explain.launched import Launched, find_profiler, launched_kernels
from kernelforge.generate.types import Candidate
from kernelforge.report.judgement import AblationRow, AuditReport, OutcomeWord
from kernelforge.report.nodes import trial_row
from kernelforge.search.types import Node
from kernelforge.search.winners import find_node, is_number
from kernelforge.settings import Settings
from kernelforge.store.project import Project
from kernelforge.verify.prepare import EagerBaseline
from kernelforge.verify.types import Rejected
from kernelforge.workshop import BACKEND_OF


def node_of(project: Project, name: str, variant: str = "") -> tuple[VariantRecord, Node]:
    """The node called `name`: a unique prefix of its id, or, with its variant named, its number.

    Raises:
        NotFound: none, or more than one.
    """
    if variant:
        record = project.record(variant)
        return record, find_node(record, project.nodes(record.variant.id), name)
    if is_number(name):
        raise NotFound(
            f"which variant's node {name}?", hint="name it with --variant VARIANT; `kforge ops` lists the variants"
        )
    records = [r for card in project.cards() for r in card.variants]
    found = [(r, n) for r in records for n in project.nodes(r.variant.id) if name and n.id.startswith(name.lower())]
    if len(found) == 1:
        return found[0]
    if found:
        listed = ", ".join(f"{n.id[:16]} ({r.variant.label})" for r, n in found[:6])
        raise NotFound(f"{name!r} is the start of {len(found)} nodes", hint=f"name one of {listed}")
    raise NotFound(f"no node is called {name!r}", hint="`kforge op show VARIANT` lists the nodes")


def audit_node(project: Project, name: str, *, variant: str = "", settings: Settings) -> AuditReport:
    """Look into the stored binary of a node, and run it with its `launch` taken away.

    Raises:
        NotFound: no such node, or its binary is gone. ProjectError: the project or the binary is damaged.
    """
    record, node = node_of(project, name, variant)
    row, scored = trial_row(node), node.outcome
    if not isinstance(scored, Scored):
        return AuditReport(
            node=node.id, number=node.number, variant=node.variant_id, variant_label=record.variant.label,
            outcome=cast(OutcomeWord, row.outcome), reason=row.reason, detail=row.detail,
        )  # fmt: skip
    if scored.audit.kind is AuditKind.TORCH:
        return _of_torch(record, node, scored)
    path = project.binary(scored.artifact.digest)
    again = audit_binary(path, device=project.device)
    needed, undefined = _asked_for(path)
    contents = _contents(path, project.device, settings)
    artifact = replace(scored.artifact, path=path)
    launched = Launched()
    if isinstance(again, Rejected):
        ablation = AblationRow(status="unavailable", detail="the binary is not run, because the audit refuses it now")
    else:
        ablation = _ablation(project, record, node.candidate, artifact, settings)
        launched = _launched(project, record, artifact, settings)
    return AuditReport(
        node=node.id, number=node.number, variant=node.variant_id, variant_label=record.variant.label,
        outcome="accepted", label=str(scored.audit.kind), evidence=scored.audit.evidence,
        label_now=str(again.reason) if isinstance(again, Rejected) else str(again.kind),
        evidence_now=(again.detail,) if isinstance(again, Rejected) else again.evidence,
        binary=scored.artifact.digest, size_bytes=path.stat().st_size, needed=needed, undefined=undefined,
        functions=tuple((f.name, f.size_bytes) for f in contents.functions),
        sections=tuple((s.name, s.size_bytes) for s in contents.sections), kernels=contents.kernels,
        kernel_source=contents.kernel_source if project.device == "cuda" else "",
        launched=launched.kernels, launched_source=launched.unavailable or ("by ncu" if launched.kernels else ""),
        ablation=ablation,
    )  # fmt: skip


def _of_torch(record: VariantRecord, node: Node, scored: Scored) -> AuditReport:
    """With torch in the process, nothing of what is looked at tells who does the work."""
    return AuditReport(
        node=node.id, number=node.number, variant=node.variant_id, variant_label=record.variant.label,
        outcome="accepted", label=str(scored.audit.kind), evidence=scored.audit.evidence,
        label_now=str(scored.audit.kind), evidence_now=scored.audit.evidence, binary=scored.artifact.digest,
        ablation=AblationRow(status="unavailable", detail=TORCH_TIER),
    )  # fmt: skip


def _asked_for(path: Path) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Linked libraries and undefined symbols."""
    try:
        binary = read_shared_object(path)
    except ElfError:  # the audit of the same file has said so
        return (), ()
    return binary.needed, binary.undefined


def _contents(path: Path, device: str, settings: Settings) -> Contents:
    nvcc = None
    if device == "cuda":
        try:
            nvcc = find_nvcc(settings)
        except EnvironmentMissing:
            nvcc = None
    try:
        return read_contents(path, device=device, cuobjdump=find_cuobjdump(nvcc))
    except ElfError as error:
        return Contents(sections=(), functions=(), kernels=(), kernel_source=f"unavailable: {error}")


def _launched(project: Project, record: VariantRecord, artifact: Artifact, settings: Settings) -> Launched:
    """The kernels of one call; nothing on the CPU, where there are none."""
    if project.device != "cuda":
        return Launched()
    profiler = find_profiler(settings)
    if profiler is None:
        return Launched(unavailable="unknown: ncu, a part of the CUDA toolkit, was not found")
    import torch

    from kernelforge.runner.eager import EagerWorker

    threads = torch.get_num_threads()
    try:
        with EagerWorker("cuda", threads) as eager:
            case = smallest_case(record, project.examples, EagerBaseline(eager), torch.device("cuda"))
        return launched_kernels(
            artifact, record.variant, case, profiler=profiler, device="cuda", threads=threads, settings=settings
        )
    except (EnvironmentMissing, HarnessError, DeviceBusy) as error:
        return Launched(unavailable=f"unknown: {error.message}")


def _ablation(
    project: Project, record: VariantRecord, candidate: Candidate, artifact: Artifact, settings: Settings
) -> AblationRow:
    import torch

    from kernelforge.runner.eager import EagerWorker

    device, threads = present_device(project.device), torch.get_num_threads()
    try:
        backend = get_backend(BACKEND_OF[device], settings)
        with EagerWorker(device, threads) as eager:
            result = ablate(
                artifact, candidate, record, project.examples, backend=backend, eager=eager, device=device,
                settings=settings, threads=threads,
            )  # fmt: skip
    except (EnvironmentMissing, HarnessError, DeviceBusy) as error:
        return AblationRow(status="unavailable", detail=error.message)
    if isinstance(result, BuildFailure):
        first = next(iter(result.detail.splitlines()), "")
        return AblationRow(status="unavailable", detail=f"the stub does not build: {result.reason}: {first}")
    if result.shows_own_work:
        detail = (
            f"with a launch that does nothing the outputs stay unwritten; with its own they are right ({result.case})"
        )
        return AblationRow(status="shown", detail=detail)
    left = "unwritten" if result.unwritten else "WRITTEN"
    detail = f"outputs {left} by a launch that does nothing ({result.stub}); the candidate itself: {result.candidate}"
    return AblationRow(status="not_shown", detail=f"{detail} ({result.case})")
