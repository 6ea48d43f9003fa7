"""Kernels of the torch ABI for CUDA, judged on a GPU."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.cli.test_judgement import candidate, relu_record
from tests.torch_kernels import CUDA

from kernelforge.audit.types import AuditKind
from kernelforge.benchmark.protocol import Protocol
from kernelforge.build.backends import get_backend
from kernelforge.cards.examples import ExampleStore
from kernelforge.evaluate.judge import Judge
from kernelforge.evaluate.types import Scored
from kernelforge.search.types import summarise
from kernelforge.settings import load_settings
from kernelforge.verify.types import Rejected, RejectReason

WRONG = CUDA.replace("0.0f", "0.5f")
BAD_LAUNCH = CUDA.replace("<<<(n + 255) / 256, 256>>>", "<<<1, 4096>>>")


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_on_a_gpu(torch_cache: Path, tmp_path: Path) -> None:
    settings = load_settings({"KFORGE_CACHE_DIR": str(torch_cache)})
    examples = ExampleStore(tmp_path / "examples")
    record = relu_record(examples.put([torch.linspace(-2, 2, 4000).reshape(4, 1000)]))
    record = replace(record, variant=replace(record.variant, device="cuda"))
    backend = get_backend("cuda", settings)
    with Judge(settings, device="cuda", backend=backend, threads=1, protocol=Protocol(budget_s=0.3)) as judge:
        right, wrong, bad = (
            judge.evaluate(replace(candidate(record, source), backend="cuda"), record, examples)
            for source in (CUDA, WRONG, BAD_LAUNCH)
        )
    assert isinstance(right.outcome, Scored), right.outcome
    assert right.outcome.audit.kind is AuditKind.TORCH
    assert 0.2 < right.outcome.measurement.speedup.median < 5
    assert summarise(right.candidate, right.outcome).speedup is None
    assert isinstance(wrong.outcome, Rejected) and wrong.outcome.reason is RejectReason.WRONG_VALUE
    # Nothing is launched, nobody looks at the error, and the outputs stay as they were.
    assert isinstance(bad.outcome, Rejected), bad.outcome
