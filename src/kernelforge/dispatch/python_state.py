"""What a model's forward may read beside its arguments: attributes, containers, closures, tensors. Owns `PythonState`.

A CUDA graph replays kernels and none of the Python around them, so it is right only while that Python would do the same
again. `PythonState` lists all places that can be reached from a model, tells after a run which of them the run has
changed, and before a replay, in a fraction of a millisecond, whether anything has changed since.
"""

from __future__ import annotations

import functools
import types
from collections import deque
from collections.abc import Callable, Iterator
from operator import getitem
from typing import Any, TypeAlias

import torch

from kernelforge.native.watch import Watch, watch
from kernelforge.settings import load_settings

Place: TypeAlias = "tuple[Callable[[Any, Any], Any], Any, Any, str]"
"""How a value is read (`getitem` or `getattr`), from what, under which key, and the place's name for people."""

MAX_PLACES = 200_000

_ATOMS = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, torch.layout, torch.Size)
_OPAQUE = (type, types.ModuleType, types.BuiltinFunctionType, types.GeneratorType, types.CodeType, types.FrameType)
_SKIPPED = frozenset({
    # Of nn.Module: what forward does not read, or what is looked at elsewhere.
    "_backward_pre_hooks", "_backward_hooks", "_is_full_backward_hook", "_forward_hooks_with_kwargs",
    "_forward_hooks_always_called", "_forward_pre_hooks_with_kwargs", "_state_dict_hooks", "_state_dict_pre_hooks",
    "_load_state_dict_pre_hooks", "_load_state_dict_post_hooks", "_non_persistent_buffers_set",
})  # fmt: skip
_HOOKS = ("_forward_hooks", "_forward_pre_hooks")


class PythonState:
    """Everything that can be reached from a model at one moment.

    Attributes:
        tensors: each tensor with a name for people, in the order of its first appearance.
        hooks: names of the modules that have hooks around their forward.
        complete: false when there was more than could be listed.
    """

    def __init__(self, model: object) -> None:
        self.tensors: list[tuple[str, torch.Tensor]] = []
        self.hooks: list[str] = []
        self.complete = True
        self._places: list[Place] = []
        self._sized: list[tuple[Any, int, str]] = []
        self._seen: dict[int, object] = {}
        self._walk(model)
        self._values = [read(holder, key) for read, holder, key, _ in self._places]
        self._bare = [tensor for _, tensor in self.tensors]
        self._pointers = [_pointer(t) for t in self._bare]
        self._settings = load_settings()
        self._watch = self._watched()

    def _watched(self) -> Watch:
        places = [(p[1], p[2], value) for p, value in zip(self._places, self._values, strict=True)]
        return watch(places, [(container, size) for container, size, _ in self._sized], self._settings)

    def unchanged(self) -> bool:
        """Whether every place holds the very object that it held, and every tensor its memory."""
        return self._watch.unchanged() and list(map(_pointer, self._bare)) == self._pointers

    def change(self) -> str:
        """The name of the first place that says something else than before, or "".

        An equal number or text in place of another object is no change; it is taken as the new value.
        """
        for position, (read, holder, key, name) in enumerate(self._places):
            before = self._values[position]
            try:
                now = read(holder, key)
            except (KeyError, IndexError, AttributeError, ValueError):
                return name
            if now is before:
                continue
            if type(now) is not type(before) or not isinstance(now, _ATOMS) or now != before:
                return name
            self._values[position] = now
        for holder, size, name in self._sized:
            if len(holder) != size:
                return name
        for (name, tensor), pointer in zip(self.tensors, self._pointers, strict=True):
            if _pointer(tensor) != pointer:
                return f"the memory of {name}"
        self._watch = self._watched()
        return ""

    def _walk(self, model: object) -> None:
        waiting: deque[tuple[object, str]] = deque([(model, "")])
        while waiting:
            value, name = waiting.popleft()
            if isinstance(value, (*_ATOMS, *_OPAQUE)) or id(value) in self._seen:
                continue
            self._seen[id(value)] = value  # held: its id must not be given to another object meanwhile
            if len(self._places) > MAX_PLACES:
                self.complete = False
                return
            waiting.extend(self._look_into(value, name))

    def _look_into(self, value: Any, name: str) -> Iterator[tuple[object, str]]:
        """List the places of one object, and yield what they hold."""
        if isinstance(value, torch.Tensor):
            if value.layout is torch.strided and not value.is_meta:  # others have no one memory to look at
                self.tensors.append((name or "a tensor", value))
        elif isinstance(value, torch.nn.Module):
            yield from self._look_into_module(value, name)
        elif isinstance(value, dict):
            yield from self._look_into_dict(value, name)
        elif isinstance(value, list):
            self._sized.append((value, len(value), name or "a list"))
            for index, item in enumerate(value):
                yield self._place(getitem, value, index, item, f"{name}[{index}]")
        elif isinstance(value, tuple):
            for index, item in enumerate(value):
                yield item, f"{name}[{index}]"
        elif isinstance(value, set | frozenset | deque):
            self._sized.append((value, len(value), name or "a set"))
        elif isinstance(value, types.FunctionType):
            yield from self._look_into_function(value, name)
        elif isinstance(value, types.MethodType):
            yield value.__self__, name
            yield value.__func__, _joined(name, value.__name__)
        elif isinstance(value, functools.partial):
            yield value.func, name
            yield value.args, _joined(name, "args")
            yield value.keywords, _joined(name, "keywords")
        else:
            yield from self._look_into_object(value, name)

    def _look_into_module(self, module: torch.nn.Module, name: str) -> Iterator[tuple[object, str]]:
        own = vars(module)
        if any(own.get(hooks) for hooks in _HOOKS):
            self.hooks.append(name or type(module).__name__)
        for key, item in own.items():
            if key in _SKIPPED:
                continue
            if key in {"_parameters", "_buffers", "_modules"}:
                yield from self._look_into_dict(item, name, dotted=True)
            elif key in _HOOKS:
                self._sized.append((item, len(item), _joined(name, key)))
            else:
                yield self._place(getitem, own, key, item, _joined(name, key))
        self._sized.append((own, len(own), name or type(module).__name__))
        for kind in type(module).__mro__:
            if kind is not object and not kind.__module__.startswith("torch."):
                methods = ((key, item) for key, item in vars(kind).items() if isinstance(item, types.FunctionType))
                yield from ((method, f"{kind.__name__}.{key}") for key, method in methods)

    def _look_into_dict(
        self, value: dict[Any, Any], name: str, *, dotted: bool = False
    ) -> Iterator[tuple[object, str]]:
        self._sized.append((value, len(value), name or "a dict"))
        for key, item in list(value.items()):
            yield self._place(getitem, value, key, item, _joined(name, str(key)) if dotted else f"{name}[{key!r}]")

    def _look_into_function(self, function: types.FunctionType, name: str) -> Iterator[tuple[object, str]]:
        """Cells, defaults, and those globals that are data: a counter, a cache, a switch."""
        for variable, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            try:
                item = cell.cell_contents
            except ValueError:
                continue
            yield self._place(getattr, cell, "cell_contents", item, _joined(name, variable))
        yield function.__defaults__ or (), _joined(name, "defaults")
        yield function.__kwdefaults__ or (), _joined(name, "defaults")
        known = function.__globals__
        for variable in function.__code__.co_names:
            item = known.get(variable)
            if isinstance(item, (*_ATOMS, list, dict, set, tuple, torch.Tensor)) and variable in known:
                yield self._place(getitem, known, variable, item, f"{function.__module__}.{variable}")

    def _look_into_object(self, value: object, name: str) -> Iterator[tuple[object, str]]:
        own = getattr(value, "__dict__", None)
        if isinstance(own, dict) and not type(value).__module__.startswith(("torch.", "logging", "threading")):
            self._sized.append((own, len(own), name or type(value).__name__))
            for key, item in list(own.items()):
                yield self._place(getitem, own, key, item, _joined(name, str(key)))
        for slot in _slots(type(value)):
            if hasattr(value, slot):
                yield self._place(getattr, value, slot, getattr(value, slot), _joined(name, slot))

    def _place(self, read: Any, holder: object, key: object, item: object, name: str) -> tuple[object, str]:
        self._places.append((read, holder, key, name))
        return item, name


_pointer: Callable[[torch.Tensor], int] = torch.Tensor.data_ptr


def _slots(kind: type) -> Iterator[str]:
    for base in kind.__mro__:
        if base.__module__.startswith(("torch.", "builtins")):
            continue
        declared = base.__dict__.get("__slots__", ())
        names = (declared,) if isinstance(declared, str) else declared
        for slot in names:
            hidden = slot.startswith("__") and not slot.endswith("__")
            yield f"_{base.__name__.lstrip('_')}{slot}" if hidden else slot


def _joined(name: str, key: str) -> str:
    return f"{name}.{key}" if name else key
