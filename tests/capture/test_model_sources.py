"""How models are named: files, factories, torchvision and transformers, and what each says when it cannot load."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

from kernelforge.capture.models import ModelOptions, load_model
from kernelforge.capture.recorder import record
from kernelforge.errors import EnvironmentMissing, ModelError, UsageError

GOOD = """
import torch
class Model(torch.nn.Module):
    def __init__(self, features):
        super().__init__()
        self.inner = torch.nn.Linear(features, 3)
    def forward(self, x):
        return self.inner(x)
def get_init_inputs(): return [5]
def get_inputs(): return [torch.randn(2, 5)]
"""


def write(folder: Path, text: str) -> str:
    path = folder / "net.py"
    path.write_text(text)
    return str(path)


def test_a_file_in_the_kernelbench_form(tmp_path: Path) -> None:
    loaded = load_model(write(tmp_path, GOOD), ModelOptions(samples=3, dtype="bfloat16"))
    assert loaded.name == "net"
    assert len(loaded.calls) == 3
    result = loaded.calls[0]()
    assert isinstance(result, torch.Tensor)
    assert (result.dtype, result.shape, result.requires_grad) == (torch.bfloat16, (2, 3), False)
    assert isinstance(loaded.model, torch.nn.Module) and not loaded.model.training


def test_weights_follow_the_seed(tmp_path: Path) -> None:
    path = write(tmp_path, GOOD)
    first, same, other = (load_model(path, ModelOptions(seed=s)).calls[0]() for s in (1, 1, 2))
    assert isinstance(first, torch.Tensor) and isinstance(same, torch.Tensor) and isinstance(other, torch.Tensor)
    assert torch.equal(first, same)
    assert not torch.equal(first, other)


def test_get_samples_and_run_are_used(tmp_path: Path) -> None:
    extra = """
def get_samples(n): return [[torch.randn(i + 1, 5)] for i in range(n)]
def run(model, x): return model(x).shape[0]
"""
    loaded = load_model(write(tmp_path, GOOD + extra), ModelOptions(samples=2))
    assert [call() for call in loaded.calls] == [1, 2]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = 1", "defines no Model"),
        ("class Model: ...", "defines no get_inputs"),
        ("raise OSError('no disk')", "raised OSError in importing it: no disk"),
        ("class Model:\n  def __init__(self): raise KeyError('a')\ndef get_inputs(): return []", "raised KeyError"),
        ("def broken(:", "raised SyntaxError"),
    ],
)
def test_what_is_wrong_with_a_file_is_said(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        load_model(write(tmp_path, text), ModelOptions())


def test_missing_files_and_unknown_names() -> None:
    with pytest.raises(ModelError, match="does not exist"):
        load_model("nowhere.py", ModelOptions())
    with pytest.raises(ModelError, match="names no model"):
        load_model("no model at all", ModelOptions())


def test_factories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "made_here.py").write_text(
        "import torch\n"
        "def one(): return torch.nn.ReLU(), (torch.tensor([-1.0, 1.0]),)\n"
        "def named(): return torch.nn.Softmax(dim=0), (), {'input': torch.zeros(2)}\n"
        "def many(): return [lambda: 1, lambda: 2]\n"
        "def wrong(): return 3\n"
    )
    monkeypatch.chdir(tmp_path)

    def results(name: str) -> list[object]:
        return [call() for call in load_model(f"made_here:{name}", ModelOptions()).calls]

    (relu,) = results("one")
    assert isinstance(relu, torch.Tensor) and relu.tolist() == [0.0, 1.0]
    (softmax,) = results("named")
    assert isinstance(softmax, torch.Tensor) and softmax.tolist() == [0.5, 0.5]
    assert results("many") == [1, 2]
    with pytest.raises(ModelError, match="returned a int"):
        results("wrong")
    with pytest.raises(ModelError, match="has no function"):
        results("absent")
    with pytest.raises(ModelError, match="cannot be imported"):
        load_model("no_such_package_here:f", ModelOptions())


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_cuda_without_a_gpu() -> None:
    with pytest.raises(EnvironmentMissing, match="no CUDA device"):
        load_model("nowhere.py", ModelOptions(device="cuda"))


def test_nothing_is_downloaded() -> None:
    for text in ("torchvision:resnet18", "transformers:qwen3"):
        with pytest.raises(UsageError, match="not downloaded"):
            load_model(text, ModelOptions())


@pytest.mark.parametrize("random_weights", [False, True])
def test_an_unknown_model_is_told_before_its_weights(monkeypatch: pytest.MonkeyPatch, random_weights: bool) -> None:
    """A list of all models helps nobody."""
    options = ModelOptions(random_weights=random_weights)
    known = ModuleType("torchvision.models")
    known.list_models = lambda: ["resnet18", "resnet101", "vgg11"]  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torchvision", ModuleType("torchvision"))
    monkeypatch.setitem(sys.modules, "torchvision.models", known)
    with pytest.raises(ModelError, match="no model 'resnet19'\n  hint: did you mean resnet18"):
        load_model("torchvision:resnet19", options)
    if importlib.util.find_spec("transformers") is not None:
        with pytest.raises(ModelError, match="no model type 'qwen33'\n  hint: did you mean") as raised:
            load_model("transformers:qwen33", options)
        assert len(str(raised.value)) < 200
    with pytest.raises(ModelError, match=r"none/config\.json does not exist"):
        load_model("transformers:none/config.json", options)


@pytest.mark.skipif(importlib.util.find_spec("torchvision") is not None, reason="torchvision is installed")
def test_torchvision_missing_says_what_to_install() -> None:
    with pytest.raises(EnvironmentMissing, match=r"kernelforge\[torchvision\]"):
        load_model("torchvision:resnet18", ModelOptions(random_weights=True))


def test_a_small_transformers_model_is_captured() -> None:
    pytest.importorskip("transformers")
    sizes = {
        "num_hidden_layers": 2, "hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 2,
        "num_key_value_heads": 1, "head_dim": 32, "vocab_size": 100,
    }  # fmt: skip
    text = "transformers:qwen3?" + "&".join(f"{k}={v}" for k, v in sizes.items())
    loaded = load_model(text, ModelOptions(random_weights=True, samples=2))
    recording = record(loaded.calls)
    softmax = [c for c in recording.calls if c.call.operator == "softmax"]
    assert [c.call.tensors[0].shape for c in softmax] == [(1, 2, 16, 16), (1, 2, 23, 23)]
    assert [c.calls for c in softmax] == [2, 2]


def test_an_unknown_transformers_model() -> None:
    pytest.importorskip("transformers")
    with pytest.raises(ModelError, match="has no model type 'no_such_model'"):
        load_model("transformers:no_such_model", ModelOptions(random_weights=True))
