"""A model whose weights wait in memory or on disk and come in by accelerate's hooks: captured, packed, dispatched.

Between calls its parameters are on the meta device; within a module's forward they are tensors made for that call. On a
machine without a GPU the model computes on the CPU, through the same hooks.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from benchmarks.unjudged_packages import template_candidates, write_unjudged

import kernelforge
from kernelforge.capture.types import TensorRef
from kernelforge.settings import load_settings
from kernelforge.store.project import Project

transformers = pytest.importorskip("transformers")
accelerate = pytest.importorskip("accelerate")
pytestmark = pytest.mark.slow

Home = Literal["memory", "disk"]
LAYERS, VOCAB = 2, 512
CAPTURED, SERVED = (9, 14, 22, 31), 57
OPERATORS = ("mul", "silu", "softmax")


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """A model this small gains nothing from more, and where others work threads wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def text(length: int) -> torch.Tensor:
    """Token ids [1, length], on the CPU: the hooks move them too."""
    return torch.randint(VOCAB, (1, length), generator=torch.Generator().manual_seed(length))


def decoder() -> Any:
    """A small decoder of the Qwen3 architecture with random weights."""
    torch.manual_seed(0)
    config = transformers.Qwen3Config(
        vocab_size=VOCAB, hidden_size=64, intermediate_size=128, num_hidden_layers=LAYERS, num_attention_heads=4,
        num_key_value_heads=2, head_dim=16, max_position_embeddings=256, attn_implementation="eager", use_cache=False,
        tie_word_embeddings=False,
    )  # fmt: skip
    return transformers.Qwen3ForCausalLM(config).eval()


def offload(model: Any, home: Home, device: str, folder: Path) -> None:
    """Have accelerate take the weights out, and bring each in for its module's forward on `device`."""
    place = torch.device(device, 0) if device == "cuda" else torch.device("cpu")
    if home == "memory":
        accelerate.cpu_offload(model, execution_device=place)
    else:
        accelerate.disk_offload(model, folder, execution_device=place)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("home", ["memory", "disk"])
def test_kernels_serve_the_weights_that_come_in(home: Home, device: str, tmp_path: Path) -> None:
    model = decoder()
    with torch.no_grad():
        whole = decoder().to(device)
        want = whole(text(SERVED).to(device)).logits.cpu()
        offload(model, home, device, tmp_path / "weights")
        samples = [{"input_ids": text(length)} for length in CAPTURED]
        kernelforge.capture(model, samples=samples, project=tmp_path / "offloaded.kforge", repeats=0)
    project = Project.open(tmp_path / "offloaded.kforge")
    assert project.device == device, "where the model computes, not where its weights wait"
    chosen = [r for card in project.cards() if card.operator in OPERATORS for r in card.variants if not r.forgeable]
    kernels = template_candidates(chosen)
    package = kernelforge.load(write_unjudged(tmp_path / "offloaded.cast", kernels, load_settings()))
    with torch.no_grad(), package.dispatch(model):
        got = model(text(SERVED)).logits.cpu()
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)
    assert all(p.is_meta for p in model.parameters()), "the hooks took the weights out again"
    rows = {row.variant: row.hits for row in package.stats()}
    by_operator = {name: sum(rows[v.id] for v, _ in kernels if v.operator == name) for name in OPERATORS}
    assert by_operator["silu"] == by_operator["softmax"] == LAYERS
    # The norms multiply by a weight: two in each layer and the last, and two of the heads in each layer.
    weighted = [v for v, _ in kernels if v.operator == "mul" and len(v.tensors[0].shape) == 1]
    assert all(isinstance(v.argument("input"), TensorRef) for v in weighted)
    assert sum(rows[v.id] for v in weighted) == 2 * LAYERS + 1 + 2 * LAYERS, package.stats()
