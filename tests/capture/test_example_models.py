"""The models of `examples/models/`, made small: each runs, and its capture has the variants it is there for."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from kernelforge.capture.models import ModelOptions, load_model
from kernelforge.capture.recorder import record
from kernelforge.cards.distill import distill
from kernelforge.cards.types import OperatorCard

FOLDER = Path(__file__).parents[2] / "examples" / "models"


def module(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"example_{name}", FOLDER / f"{name}.py")
    assert spec is not None and spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    import sys

    sys.modules[spec.name] = loaded
    spec.loader.exec_module(loaded)
    return loaded


def cards(*calls: Callable[[], Any]) -> dict[str, OperatorCard]:
    with torch.no_grad():
        return {c.operator: c for c in distill(record(calls), model="m")}


def test_tiny_mlp_is_covered_whole() -> None:
    loaded = load_model(str(FOLDER / "tiny_mlp.py"), ModelOptions(samples=2))
    recording = record(loaded.calls)
    assert recording.uncovered == ()
    assert {c.operator for c in distill(recording, model="m")} == {"linear", "gelu", "layer_norm", "softmax"}


def test_resnet_of_two_batch_sizes() -> None:
    net = module("resnet50").Model(classes=10, blocks=(1, 1), width=8).eval()
    assert sum(p.numel() for p in module("resnet50").Model().parameters()) == 25_557_032
    found = cards(*(partial(net, torch.randn(n, 3, 64, 64)) for n in (1, 2)))
    assert {"conv2d", "batch_norm", "relu", "max_pool2d", "adaptive_avg_pool2d", "add", "linear"} <= set(found)
    for name in ("max_pool2d", "batch_norm", "relu", "adaptive_avg_pool2d"):
        (record_,) = found[name].variants
        assert record_.forgeable == ""
        batch = record_.variant.dims[0]
        assert batch.admits(1) and batch.admits(3)


def test_greedy_decoding_of_128_tokens_has_few_softmax_variants() -> None:
    qwen = module("qwen3")
    model = qwen.Model(vocab=64, hidden=32, layers=1, heads=2, kv_heads=1, head_dim=16, intermediate=32)
    ids = torch.randint(64, (1, 9))
    found = cards(partial(model.generate, ids, 128))
    variants = found["softmax"].variants
    assert len(variants) <= 3
    assert sum(v.calls for v in variants) == 128
    assert all(v.forgeable == "" for v in variants)


def test_cached_decoding_equals_decoding_from_scratch() -> None:
    qwen = module("qwen3")
    model = qwen.Model(vocab=64, hidden=32, layers=2, heads=2, kv_heads=1, head_dim=16, intermediate=32)
    ids = torch.randint(64, (2, 7))
    with torch.no_grad():
        cached = model.generate(ids, 5)
        for _ in range(5):
            ids = torch.cat((ids, model(ids)[0][:, -1:].argmax(-1)), dim=1)
    assert torch.equal(cached, ids)


def test_vae_decoder_upsamples_eightfold() -> None:
    decoder = module("vae_decoder").Model(channels=(32, 32, 64, 64), latent=4)
    with torch.no_grad():
        assert decoder(torch.randn(1, 4, 4, 4)).shape == (1, 3, 32, 32)
    found = cards(*(partial(decoder, torch.randn(1, 4, n, n)) for n in (4, 6)))
    assert {"conv2d", "group_norm", "silu", "interpolate"} <= set(found)
    (upsampling,) = found["interpolate"].variants
    assert upsampling.forgeable == ""
