"""The Python around a model's kernels: what changes it is found before a graph is replayed."""

from __future__ import annotations

import argparse
import collections
import functools
import os
import sys
import types
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
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


CHANGES_AROUND_SCRIPTS: dict[str, tuple[str, str, str, str]] = {
    # What there is, what forward reads, what changes it, and the name of the place.
    "inherited attribute, set on a subclass": (
        "class Base:\n    scale = 1.0\nclass Kept(Base): pass\nkept = Kept()",
        "kept.scale", "Kept.scale = 2.0", "Kept",
    ),
    "inherited method, overridden on a subclass": (
        "class Base:\n    def scale(self): return 1.0\nclass Kept(Base): pass\nkept = Kept()",
        "kept.scale()", "Kept.scale = lambda self: 2.0", "Kept",
    ),
    "new attribute of a class": (
        "class Kept: pass\nkept = Kept()", "getattr(kept, 'fresh', 1.0)", "Kept.fresh = 2.0", "Kept",
    ),
    "other bases of a class": (
        "class A: scale = 1.0\nclass B: scale = 2.0\nclass Kept(A): pass\nkept = Kept()",
        "kept.scale", "Kept.__bases__ = (B,)", "Kept.__mro__",
    ),
    "attribute of a metaclass": (
        "class Meta(type): scale = 1.0\nclass Kept(metaclass=Meta): pass", "Kept.scale", "Meta.scale = 2.0",
        "Meta.scale",
    ),
    "classmethod": (
        "class Kept:\n    @classmethod\n    def scale(cls): return 1.0\nkept = Kept()",
        "kept.scale()", "Kept.scale = classmethod(lambda cls: 2.0)", "Kept.scale",
    ),
    "partialmethod": (
        "SCALE = 1.0\ndef by(self, a): return SCALE\n"
        "class Kept: scale = functools.partialmethod(by, 1)\nkept = Kept()",
        "kept.scale()", "SCALE = 2.0", ".SCALE",
    ),
    "singledispatchmethod": (
        "SCALE = 1.0\nclass Kept:\n    @functools.singledispatchmethod\n    def scale(self, a): return SCALE\n"
        "kept = Kept()",
        "kept.scale(1)", "SCALE = 2.0", ".SCALE",
    ),
    "cached property": (
        "SCALE = 1.0\nclass Kept:\n    @functools.cached_property\n    def scale(self): return SCALE\nkept = Kept()\n"
        "kept.scale",
        "kept.scale", "SCALE = 2.0", ".SCALE",
    ),
    "what a setter reads": (
        "SCALE = 1.0\nclass Kept:\n    def put(self, value): value[0] *= SCALE\n    scale = property(None, put)\n"
        "kept = Kept()",
        "setattr(kept, 'scale', [1.0]) or 1.0", "SCALE = 2.0", ".SCALE",
    ),
    "set": ("kept = {float('1.5')}", "sum(kept)", "kept.clear(); kept.add(float('2.5'))", "kept"),
    "deque": ("kept = deque([float('1.5')])", "sum(kept)", "kept.clear(); kept.append(float('2.5'))", "kept"),
    "array of objects": (
        "kept = numpy.array([float('1.5')], dtype=object)", "kept[0]", "kept[0] = None; kept[0] = float('2.5')", "kept",
    ),
    "name imported inside of forward": ("", "imported()", "sys.modules['usercfg'].SCALE = 2.0", "usercfg.SCALE"),
    "module imported inside of forward": (
        "", "imported_module()", "sys.modules['usercfg'].SCALE = 2.0", "usercfg.SCALE",
    ),
    "module imported relatively": (
        "__package__ = 'userpkg'\ndef scale():\n    from .config import SCALE\n    return SCALE",
        "scale()", "sys.modules['userpkg.config'].SCALE = 2.0", "config.SCALE",
    ),
    "module inside of a module": (
        "import userpkg", "userpkg.config.SCALE", "userpkg.config.SCALE = 2.0", "config.SCALE",
    ),
    "function of a module inside of a module": (
        "import userpkg", "userpkg.config.scale()", "userpkg.config.SCALE = 2.0", "config.SCALE",
    ),
    "module as an attribute": (
        "import usercfg\nclass Kept: pass\nkept = Kept()\nkept.cfg = usercfg\ndel usercfg",
        "kept.cfg.SCALE", "sys.modules['usercfg'].SCALE = 2.0", "usercfg.SCALE",
    ),
    "module that is handed on": (
        "import usercfg\ndef read(module): return module.SCALE", "read(usercfg)",
        "sys.modules['usercfg'].SCALE = 2.0", "usercfg.SCALE",
    ),
    "name of an attribute of a module as text": (
        "import usercfg", "getattr(usercfg, 'SCALE')", "sys.modules['usercfg'].SCALE = 2.0", "usercfg.SCALE",
    ),
    "module exchanged for another": (
        "import types", "imported()", "sys.modules['usercfg'] = types.SimpleNamespace(SCALE=2.0)",
        "the import of usercfg",
    ),
    "module that is imported later": ("", "late()", "sys.modules['userlate'] = sys", "the import of userlate"),
    "function of torch in a global": (
        "from torch.nn.functional import relu", "relu(x)", "relu = lambda x: x", ".relu",
    ),
    "what a cached function reads": (
        "SCALE = 1.0\n@functools.lru_cache\ndef scale(a): return a * SCALE", "scale(1.0)", "SCALE = 2.0", ".SCALE",
    ),
    "method of an object that was built in": (
        "kept = {'scale': 1.0}\nscale = kept.get\nname = 'scale'", "scale(name)", "kept['scale'] = 2.0",
        "scale['scale']",
    ),
    "attributes replaced at once": (
        "class Kept: pass\nkept = Kept()\nkept.scale = 1.0", "kept.scale", "kept.__dict__ = {'scale': 2.0}",
        "kept.__dict__",
    ),
    "attributes of a module replaced at once": (
        "kept = nn.Identity()\nkept.scale = 1.0", "kept.scale", "kept.__dict__ = {**vars(kept), 'scale': 2.0}",
        "kept.__dict__",
    ),
    "class of an object": (
        "class A: scale = 1.0\nclass B: scale = 2.0\nkept = A()", "kept.scale", "kept.__class__ = B", "kept.__class__",
    ),
    **{
        f"attribute of an own kind of {kind}": (
            f"class Kept({kind}): pass\nkept = Kept()\nkept.scale = 1.0", "kept.scale", "kept.scale = 2.0",
            "kept.scale",
        )
        for kind in ("list", "tuple", "int", "float", "str", "dict", "set", "bytes", "deque")
    },
    "attribute of an own kind of partial": (
        "class Kept(functools.partial): pass\nkept = Kept(float)\nkept.scale = 1.0", "kept.scale", "kept.scale = 2.0",
        "kept.scale",
    ),
    "first attribute of a tensor": ("kept = torch.zeros(2)", "getattr(kept, 'scale', 1)", "kept.scale = 3", "kept"),
    "first attribute of a function": (
        "def kept(): return 1", "getattr(kept, 'scale', 1)", "kept.scale = 3", "kept",
    ),
    "UserDict": (
        "kept = collections.UserDict(scale=1.0)", "kept['scale']", "kept['scale'] = 2.0", "kept.data['scale']",
    ),
    "UserList": ("kept = collections.UserList([1.0])", "kept[0]", "kept[0] = 2.0", "kept.data[0]"),
    "ChainMap": ("kept = collections.ChainMap({'a': 1.0})", "kept['a']", "kept['a'] = 2.0", "kept.maps[0]['a']"),
    "ConfigParser": (
        "kept = configparser.ConfigParser()\nkept['a'] = {'scale': '1'}", "float(kept['a']['scale'])",
        "kept['a']['scale'] = '2'", "kept._sections['a']['scale']",
    ),
    "key of a dict with defaults": (
        "kept = collections.defaultdict(lambda: 1.0, a=2.0)", "kept['a']", "del kept['a']", "kept['a']",
    ),
    "object behind a weak proxy": (
        "class Kept: pass\nowner = Kept()\nowner.scale = 1.0\nkept = weakref.proxy(owner)", "kept.scale",
        "owner.scale = 2.0", "kept.scale",
    ),
    "counter": ("kept = itertools.count()", "kept and 1.0", "next(kept)", "kept"),
    "item of a wrapping dict": (
        "class Kept(dict):\n    def __getitem__(self, key): return [dict.__getitem__(self, key)]\nkept = Kept(a=1.0)",
        "kept['a'][0]", "dict.__setitem__(kept, 'a', 2.0)", "kept['a']",
    ),
    "slot of an own kind of dict": (
        "class Kept(dict): __slots__ = ('scale',)\nkept = Kept()\nkept.scale = 1.0", "kept.scale", "kept.scale = 2.0",
        "kept.scale",
    ),
    "slot of an own kind of list": (
        "class Kept(list): __slots__ = ('scale',)\nkept = Kept()\nkept.scale = 1.0", "kept.scale", "kept.scale = 2.0",
        "kept.scale",
    ),
}  # fmt: skip

IRRELEVANT: dict[str, tuple[str, str, str]] = {
    # What there is, what forward reads, and what happens that does not matter.
    "global with the name of an attribute": ("mean = 0.0", "x.mean()", "mean = 1.0"),
    "unread name of a module": ("import usercfg", "usercfg.SCALE", "usercfg.OTHER = 2.0"),
    "partialmethod": (
        "def by(self, a): return 1.0\nclass Kept: scale = functools.partialmethod(by, 1)\nkept = Kept()",
        "kept.scale()", "",
    ),
    "singledispatchmethod": (
        "class Kept:\n    @functools.singledispatchmethod\n    def scale(self, a): return 1.0\nkept = Kept()",
        "kept.scale(1)", "kept.scale('text')",
    ),
    "descriptor that makes objects": (
        "class Made:\n    def __get__(self, *_): return [1.0]\nclass Kept: scale = Made()\nkept = Kept()",
        "kept.scale[0]", "",
    ),
    "wrapping dict": (
        "class Kept(dict):\n    def __getitem__(self, key): return [dict.__getitem__(self, key)]\n"
        "    def items(self): return [(k, [v]) for k, v in dict.items(self)]\n"
        "    def __len__(self): return 7\nkept = Kept(a=1.0)", "kept['a'][0]", "",
    ),
    "wrapping list": (
        "class Kept(list):\n    def __getitem__(self, index): return [list.__getitem__(self, index)]\n"
        "    def __len__(self): return 7\nkept = Kept([1.0])", "kept[0][0]", "",
    ),
    "slots of an own kind of dict": ("class Kept(dict): __slots__ = ('a',)\nkept = Kept()\nkept.a = 1.0", "kept.a", ""),
    "slots of an own kind of list": ("class Kept(list): __slots__ = ('a',)\nkept = Kept()\nkept.a = 1.0", "kept.a", ""),
    "counter that stands still": ("kept = itertools.count()", "kept and 1.0", ""),
    "open file": ("kept = opened", "kept and 1.0", ""),
    "standard output": ("kept = sys.stdout", "kept and 1.0", ""),
    "module that must not be imported": ("sys.modules['userlate'] = None", "late()", ""),
    "weak references to an object with slots": (
        "class Kept: __slots__ = ('scale', '__weakref__')\nkept = Kept()\nkept.scale = 1.0", "kept.scale",
        "other = weakref.ref(kept)",
    ),
    "dead weak proxy": ("kept = weakref.proxy(type('Kept', (), {})())", "1.0 if type(kept) else 0.0", ""),
    "weak proxy": ("class Kept: scale = 1.0\nowner = Kept()\nkept = weakref.proxy(owner)", "kept.scale", ""),
    "foreign function with a cache in a global": ("from re import compile", "compile('a') and 1.0", "compile('b')"),
}  # fmt: skip


@pytest.fixture
def user(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """Globals of a script, beside which a module `usercfg` and a package `userpkg` with a module can be imported."""
    modules = {name: types.ModuleType(name) for name in ("usercfg", "userpkg", "userpkg.config", "userscript")}
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
        exec("SCALE = 1.0\ndef scale(): return SCALE", vars(module))
    modules["userpkg"].config = modules["userpkg.config"]  # type: ignore[attr-defined]
    script = vars(modules["userscript"])
    exec(
        "import collections, configparser, functools, itertools, sys, weakref\n"
        "import numpy, torch\nfrom collections import deque\nfrom torch import nn\n"
        "def imported():\n    from usercfg import SCALE\n    return SCALE\n"
        "def imported_module():\n    import usercfg\n    return usercfg.SCALE\n"
        "def late():\n    try:\n        import userlate\n    except ImportError:\n        return 1.0\n"
        "    return userlate.SCALE\n",
        script,
    )
    with Path(os.devnull).open() as script["opened"]:
        yield script
    sys.modules.pop("userlate", None)


def forward_of(script: dict[str, Any], setup: str, expression: str) -> Callable[[torch.Tensor], Any]:
    exec(f"{setup}\ndef forward(x):\n    return x * ({expression})", script)
    forward: Callable[[torch.Tensor], Any] = script["forward"]
    return forward


@pytest.mark.parametrize("name", CHANGES_AROUND_SCRIPTS)
def test_a_change_around_a_script_s_function_is_found_and_named(name: str, user: dict[str, Any]) -> None:
    setup, expression, change, place = CHANGES_AROUND_SCRIPTS[name]
    forward = forward_of(user, setup, expression)
    before = forward(torch.ones(2))
    state = PythonState(forward)
    assert torch.equal(forward(torch.ones(2)), before)
    assert state.unchanged() and state.change() == "" and state.iterators == [] and state.complete
    exec(change, user)
    assert not state.unchanged()
    assert state.change().endswith(place)


@pytest.mark.parametrize("name", IRRELEVANT)
def test_what_forward_does_not_read_is_no_change(name: str, user: dict[str, Any]) -> None:
    setup, expression, event = IRRELEVANT[name]
    forward = forward_of(user, setup, expression)
    state = PythonState(forward)
    for step in ("", event):
        forward(torch.ones(2))
        exec(step, user)
        assert state.unchanged() and state.change() == "" and state.iterators == [] and state.complete
