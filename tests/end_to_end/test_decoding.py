"""Greedy decoding with a growing cache: one package serves every step, other prompt lengths and other batch sizes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from examples.models import qwen3

import kernelforge
from kernelforge import forge
from kernelforge.search.types import Budget

pytestmark = pytest.mark.slow
LAYERS = 2
NEW_TOKENS = 128


def test_every_step_hits_for_prompts_and_batches_that_were_never_captured(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = qwen3.Model(vocab=256, hidden=64, layers=LAYERS, heads=4, kv_heads=2).eval()
    samples = [(torch.randint(256, (1 + i % 2, 17 + 6 * i)), NEW_TOKENS) for i in range(2)]
    project = tmp_path / "decoder.kforge"
    with torch.no_grad():
        kernelforge.capture(model.generate, samples=samples, project=project, device="cpu")
    softmax = [row for row in forge.list_operators(project) if row.operator == "softmax"]
    assert len(softmax) <= 3
    forge.forge_project(project, operators=["softmax"], budget=Budget(trials=len(softmax)))
    # By hand, because at these sizes Python's dispatch may cost more than the kernel wins: hits are the matter here.
    forge.export_project(project, output=tmp_path / "decoder.cast", picks={row.variant: "1" for row in softmax})
    package = kernelforge.load(tmp_path / "decoder.cast")
    for batch, length in ((1, 30), (3, 11)):
        prompt = torch.randint(256, (batch, length))
        before = sum(row.hits for row in package.stats())
        with torch.no_grad():
            want = model.generate(prompt, NEW_TOKENS)
            with package.dispatch(model):
                got = model.generate(prompt, NEW_TOKENS)
        assert torch.equal(got, want)
        assert sum(row.hits for row in package.stats()) - before == LAYERS * NEW_TOKENS, package.stats()
