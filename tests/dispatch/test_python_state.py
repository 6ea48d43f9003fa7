"""The Python around a model's kernels: what changes it is found before a graph is replayed."""

from __future__ import annotations

import argparse
import collections
import functools
import types
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy
import pytest
import torch
from torch import nn

from kernelforge.dispatch.python_state import PythonState

COUNTER = [0]


@dataclass(slots=True)
class Cache:
    seen: int = 0
    keys: list[torch.Tensor] = field(default_factory=list)


SCALE = 1.0
CONFIG = types.SimpleNamespace(scale=1.0)
TABLE = torch.zeros(4)
PROJECTION = nn.Linear(4, 4)
COUNTS = collections.Counter(calls=1)
OPTIONS = argparse.Namespace(scale=1.0)
HELPER = functools.partial(torch.add, alpha=1.0)


def helper() -> float:
    return SCALE + float(sum(CONFIG.scale for _ in range(2)))


class History(list[int]):
    """A container of its own kind."""


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("table", torch.zeros(4))
        self.window: int = 1000
        self.zero = 0.0
        self.cache = Cache()
        self.history = History([1, 2, 3])
        self.recent = deque([1, 2], maxlen=2)
        self.array = numpy.zeros(2)
        self.options: dict[str, Any] = {"scale": 1.0, "layers": [1, 2]}

    is_causal = False

    @property
    def factor(self) -> float:
        return helper()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        COUNTER[0] += 0
        result: torch.Tensor = self.linear(x)
        return result


class Other(Layer):
    """The same with another class."""


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Layer(), Layer()])


def first(model: Model) -> Any:
    return model.layers[0]


def swap_memory(model: Model) -> None:
    first(model).linear.weight.data = torch.ones(4, 4)


def transpose(weight: nn.Parameter) -> None:
    weight.data = weight.data.t()


def swap_parameter(model: Model) -> None:
    first(model).linear.weight = nn.Parameter(torch.ones(4, 4))


@pytest.fixture(params=["native", "python"], autouse=True)
def native(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ways to look at the places must say the same."""
    monkeypatch.setenv("KFORGE_NATIVE", str(int(request.param == "native")))


CHANGES: dict[str, tuple[Callable[[Model], object], str]] = {
    "mode": (lambda m: m.eval(), "training"),
    "parameter": (swap_parameter, "layers.0.linear.weight"),
    "memory": (swap_memory, "the memory of layers.0.linear.weight"),
    "buffer": (lambda m: first(m).register_buffer("table", torch.zeros(4)), "layers.0.table"),
    "number": (lambda m: setattr(first(m), "window", 1001), "layers.0.window"),
    "object": (lambda m: setattr(first(m).cache, "seen", 1), "layers.0.cache.seen"),
    "growing list": (lambda m: first(m).cache.keys.append(torch.zeros(1)), "layers.0.cache.keys"),
    "nested": (lambda m: first(m).options["layers"].__setitem__(1, 3), "layers.0.options['layers'][1]"),
    "own kind of list": (lambda m: first(m).history.__setitem__(2, 4), "layers.0.history[2]"),
    "window of a deque": (lambda m: first(m).recent.append(3), "layers.0.recent"),
    "array": (lambda m: first(m).array.fill(1), "layers.0.array"),
    "global of a helper": (lambda _: globals().__setitem__("SCALE", SCALE + 1), ".SCALE"),
    "global object": (lambda _: setattr(CONFIG, "scale", CONFIG.scale + 1), "CONFIG.scale"),
    "minus zero": (lambda m: setattr(first(m), "zero", -0.0), "layers.0.zero"),
    "strides": (lambda m: transpose(first(m).linear.weight), "the memory of layers.0.linear.weight"),
    "class": (lambda m: setattr(first(m), "__class__", Other), "layers.0.__class__"),
    "new key": (lambda m: first(m).options.update(more=1), "layers.0.options"),
    "module": (lambda m: setattr(first(m), "linear", nn.Linear(4, 4)), "layers.0.linear"),
    "hook": (lambda m: first(m).register_forward_hook(lambda *_: None), "layers.0._forward_hooks"),
    "new attribute": (lambda m: setattr(first(m), "extra", 1), "layers.0"),
    "global": (lambda _: COUNTER.__setitem__(0, COUNTER[0] + 1), "COUNTER[0]"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_is_found_and_named(name: str) -> None:
    change, place = CHANGES[name]
    model = Model()
    state = PythonState(model)
    assert state.unchanged() and state.change() == ""
    change(model)
    assert not state.unchanged()
    assert state.change().endswith(place)


def test_attributes_of_classes_are_places(monkeypatch: pytest.MonkeyPatch) -> None:
    state = PythonState(Model())
    monkeypatch.setattr(Layer, "is_causal", True)
    assert state.change() == "Layer.is_causal"


def test_methods_of_classes_are_places(monkeypatch: pytest.MonkeyPatch) -> None:
    state = PythonState(Model())
    monkeypatch.setattr(Layer, "forward", lambda _, x: x)
    assert state.change() == "Layer.forward"


def test_iterators_are_named() -> None:
    model = Model()
    first(model).numbers = iter([1, 2])
    assert PythonState(model).iterators == ["layers.0.numbers"]


def test_a_run_and_new_values_in_the_same_memory_change_nothing() -> None:
    model = Model()
    state = PythonState(model)
    first(model)(torch.randn(2, 4))
    model.load_state_dict({k: v + 1 for k, v in model.state_dict().items()})
    assert state.unchanged()


def test_an_equal_number_in_a_new_object_is_no_change() -> None:
    model = Model()
    state = PythonState(model)
    first(model).window = int("1000")
    assert state.change() == "" and state.unchanged()
    first(model).window = True
    assert state.change() == "layers.0.window"


def test_closures_partials_and_methods_are_looked_into() -> None:
    scale = 1.0

    def function(x: torch.Tensor, layer: Layer) -> Any:
        return layer(x) * scale

    state = PythonState(functools.partial(function, layer=Layer()))
    assert any("weight" in name for name, _ in state.tensors)
    scale = 2.0
    assert state.change().endswith("scale")
    cache = Cache()
    bound = PythonState(Holder(cache).step)
    cache.seen = 3
    assert bound.change().endswith("cache.seen")


class Holder:
    def __init__(self, cache: Cache) -> None:
        self.cache = cache

    def step(self, x: torch.Tensor) -> torch.Tensor:
        return x


GLOBAL_OBJECTS: dict[str, tuple[Callable[[], object], str]] = {
    "tensor": (lambda: TABLE.set_(torch.zeros(4)), ".TABLE"),  # type: ignore[call-overload]
    "module": (lambda: setattr(PROJECTION, "bias", None), ".PROJECTION.bias"),
    "counter": (lambda: COUNTS.update(calls=1), ".COUNTS['calls']"),
    "namespace": (lambda: setattr(OPTIONS, "scale", 2.0), ".OPTIONS.scale"),
    "partial": (lambda: globals().__setitem__("HELPER", None), ".HELPER"),
}


@pytest.mark.parametrize("name", GLOBAL_OBJECTS)
def test_global_objects_of_classes_of_torch_and_python_are_looked_into(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their `__module__` is their class's: torch's or Python's. They are a user's all the same."""
    for variable, own in (
        ("TABLE", torch.zeros(4)), ("PROJECTION", nn.Linear(4, 4)), ("COUNTS", collections.Counter(calls=1)),
        ("OPTIONS", argparse.Namespace(scale=1.0)), ("HELPER", functools.partial(torch.add, alpha=1.0)),
    ):  # fmt: skip
        monkeypatch.setitem(globals(), variable, own)

    def function(x: torch.Tensor) -> Any:
        return HELPER(PROJECTION(x), TABLE) * COUNTS["calls"] * OPTIONS.scale

    change, place = GLOBAL_OBJECTS[name]
    state = PythonState(function)
    assert state.change() == ""
    change()
    assert state.change().endswith(place)


def test_modules_with_hooks_are_named() -> None:
    model = Model()
    first(model).register_forward_pre_hook(lambda *_: None)
    assert PythonState(model).hooks == ["layers.0"]
