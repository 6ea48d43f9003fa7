"""Judges one source file that a person or another program wrote: the verb behind `kforge eval`."""

from __future__ import annotations

import time
from pathlib import Path

from kernelforge.audit.types import TORCH_TIER
from kernelforge.build.torch_abi import TORCH_ABI, is_torch_source
from kernelforge.build.types import Artifact
from kernelforge.capturing import present_device
from kernelforge.cards.types import VariantRecord
from kernelforge.delivering import read_source
from kernelforge.errors import UsageError
from kernelforge.evaluate.types import Scored, Trial
from kernelforge.generate.types import Candidate
from kernelforge.report.evaluation import eval_report
from kernelforge.report.judgement import EvalReport, PaperRow
from kernelforge.settings import Settings
from kernelforge.store.project import Project
from kernelforge.verify.types import Rejected
from kernelforge.workshop import BACKEND_OF, open_workshop


def judge_file(
    source: Path, project: Project, *, variant: str, certify: bool, paper: bool, settings: Settings
) -> EvalReport:  # fmt: skip
    """Judge a file as a candidate for a variant and store the trial; a failed certificate is stored as one more.

    Args:
        certify: after the gate also the complete certificate. paper: beside ours the original paper's protocol.

    Raises:
        NotFound: the file or the variant does not exist. UsageError: it is no source for the project's device.
    """
    record = project.record(variant)
    text = read_source(source, project, record)
    if certify and is_torch_source(text):
        raise UsageError(f"no certificate: {TORCH_TIER}", hint="leave --certify out, or write it for the C ABI")
    candidate = Candidate(
        variant_id=record.variant.id, source=text, backend=BACKEND_OF[project.device], generator="manual",
        notes=source.name,
    )  # fmt: skip
    certificate = row = None
    gate_number = 0
    with open_workshop(project.device, settings) as workshop:
        built = workshop.backend.build(candidate, record.variant)
        trial = workshop.judge.evaluate(candidate, record, project.examples, built=built)
        node = project.append(trial)
        if certify and isinstance(trial.outcome, Scored):
            started, clock = time.time(), time.monotonic()
            certificate = workshop.judge.certify(trial.outcome.artifact, record, project.examples)
            if isinstance(certificate, Rejected):
                # It stands from now on: nothing that failed its certificate is anybody's best.
                seconds, gate_number = time.monotonic() - clock, node.number
                node = project.append(
                    Trial(candidate=candidate, outcome=certificate, started=started, seconds=seconds)
                )  # fmt: skip
        if paper and isinstance(built, Artifact):
            row = _paper_row(built, record, project, settings)
    return eval_report(
        node, record, certificate=certificate, paper=row, gate_number=gate_number, profile=project.profile_of(node)
    )  # fmt: skip


def _paper_row(built: Artifact, record: VariantRecord, project: Project, settings: Settings) -> PaperRow:
    if built.backend == TORCH_ABI:
        return PaperRow(correct=None, speedup=None, note="not tried on a kernel of the torch ABI")
    import torch

    from kernelforge.evaluate.paper import paper_protocol
    from kernelforge.runner.eager import EagerWorker

    device, threads = present_device(project.device), torch.get_num_threads()
    with EagerWorker(device, threads) as eager:
        result = paper_protocol(
            built, record, project.examples, eager=eager, device=device, settings=settings, threads=threads
        )
    return PaperRow(correct=result.correct, speedup=result.speedup, note=result.note)
