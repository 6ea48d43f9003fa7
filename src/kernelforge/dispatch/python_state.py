"""What a model's forward may read beside its arguments: attributes, containers, closures, tensors. Owns `PythonState`.

A CUDA graph replays kernels and none of the Python around them, so it is right only while that Python would do the same
again. `PythonState` lists all places that can be reached from a model, tells after a run which of them the run has
changed, and before a replay, in a fraction of a millisecond, whether anything has changed since.
"""

from __future__ import annotations

import functools
import sys
import types
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from operator import attrgetter, getitem, is_
from typing import Any, TypeAlias

import torch
from torch.nn.modules import module as torch_module

from kernelforge.dispatch.signature import memory_id
from kernelforge.native.watch import Watch, watch
from kernelforge.settings import load_settings

Place: TypeAlias = "tuple[Callable[[Any, Any], Any], Any, Any, str]"
"""How a value is read (`getitem` or `getattr`), from what, under which key, and the place's name for people."""

MAX_PLACES = 200_000

_ATOMS = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, torch.layout, torch.Size)
_DEFINITIONS = (type, types.FunctionType, types.BuiltinFunctionType)
"""What is defined in the module that its `__module__` names; an object has that of its class, wherever it was made."""
_OPAQUE = (types.ModuleType, types.BuiltinFunctionType, types.CodeType, types.FrameType)
_FOREIGN = ("torch", "builtins", "logging", "threading", "abc", "collections", "enum", "functools", "typing", "numpy",
            "kernelforge")  # fmt: skip
"""Packages whose classes and functions are taken to stay as they are, as the standard library's."""
_HOLDERS = ("argparse",)
"""Packages of the standard library with classes that only hold a user's data."""
_MAX_CONTENT_BYTES = 1 << 20
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
        iterators: names of places that hold an iterator, whose next value cannot be seen.
    """

    def __init__(self, model: object) -> None:
        self.tensors: list[tuple[str, torch.Tensor]] = []
        self.hooks: list[str] = []
        self.complete = True
        self._places: list[Place] = []
        self.iterators: list[str] = []
        self._sized: list[tuple[Any, int, str]] = []
        self._contents: list[tuple[Any, object, str]] = []
        self._seen: dict[int, object] = {}
        for hooks in (torch_module._global_forward_hooks, torch_module._global_forward_pre_hooks):
            self._sized.append((hooks, len(hooks), "a hook of all modules"))
            self.hooks += ["every module"] if hooks else []
        self._walk(model)
        self._values = [read(holder, key) for read, holder, key, _ in self._places]
        self._bare = [tensor for _, tensor in self.tensors]
        self._pointers = [_pointer(t) for t in self._bare]
        self._shapes, self._strides = list(map(_shape, self._bare)), list(map(_stride, self._bare))
        self._dtypes = list(map(_dtype, self._bare))
        self._settings = load_settings()
        self._watch = self._watched()

    @property
    def memories(self) -> frozenset[int]:
        """`memory_id` of each tensor."""
        return frozenset(map(memory_id, self._bare))

    def _watched(self) -> Watch:
        places = [(p[1], p[2], value) for p, value in zip(self._places, self._values, strict=True)]
        return watch(places, [(container, size) for container, size, _ in self._sized], self._settings)

    def unchanged(self) -> bool:
        """Whether every place holds the very object that it held, and every tensor its memory."""
        return (
            self._watch.unchanged()
            and list(map(_pointer, self._bare)) == self._pointers
            and list(map(_stride, self._bare)) == self._strides
            and list(map(_shape, self._bare)) == self._shapes
            and all(map(is_, map(_dtype, self._bare), self._dtypes))
            and all(_content(value) == before for value, before, _ in self._contents)
        )

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
            if type(now) is not type(before) or not isinstance(now, _ATOMS) or repr(now) != repr(before):
                return name
            self._values[position] = now
        for holder, size, name in self._sized:
            if len(holder) != size:
                return name
        looks = zip(self._pointers, self._shapes, self._strides, self._dtypes, strict=True)
        for (name, tensor), look in zip(self.tensors, looks, strict=True):
            if (_pointer(tensor), _shape(tensor), _stride(tensor), _dtype(tensor)) != look:
                return f"the memory of {name}"
        for value, held, name in self._contents:
            if _content(value) != held:
                return f"the content of {name}"
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
            if vars(value):
                yield from self._look_into_dict(vars(value), name)
        elif isinstance(value, type):
            yield from self._look_into_class(value)
        elif isinstance(value, weakref.ref):
            yield value(), name
        elif isinstance(value, Iterator):
            self.iterators.append(name or "an iterator")
        elif isinstance(value, torch.nn.Module):
            yield from self._look_into_module(value, name)
        elif isinstance(value, dict):
            yield from self._look_into_dict(value, name)
            if type(value) is not dict:
                yield from self._look_into_object(value, name)
        elif isinstance(value, list):
            self._sized.append((value, len(value), name or "a list"))
            for index, item in enumerate(value):
                yield self._place(getitem, value, index, item, f"{name}[{index}]")
        elif isinstance(value, tuple):
            for index, item in enumerate(value):
                yield item, f"{name}[{index}]"
        elif _has_content(value):
            self._contents.append((value, _content(value), name or type(value).__name__))
            self.complete = self.complete and getattr(value, "nbytes", 0) <= _MAX_CONTENT_BYTES
            if isinstance(value, set | frozenset | deque | types.MappingProxyType):
                items = value.values() if isinstance(value, types.MappingProxyType) else value
                yield from ((item, f"an item of {name}") for item in items)
        elif isinstance(value, property):
            yield from ((f, name) for f in (value.fget,) if f is not None)
        elif isinstance(value, staticmethod | classmethod):
            yield value.__func__, name
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
        self._place(getattr, module, "__class__", type(module), _joined(name, "__class__"))
        for slot in _slots(type(module)):
            if hasattr(module, slot):
                yield self._place(getattr, module, slot, getattr(module, slot), _joined(name, slot))
        yield type(module), type(module).__name__

    def _look_into_class(self, kind: type) -> Iterator[tuple[object, str]]:
        """Attributes and methods of a class and its bases, as far as they are a user's."""
        for base in kind.__mro__:
            if _is_foreign(base.__module__):
                continue
            for key, item in list(vars(base).items()):
                if key in {"__dict__", "__weakref__", "__doc__", "__module__"} or key in _slots_of(base):
                    continue
                if not isinstance(item, classmethod):  # each reading of one makes another object
                    self._place(getattr, base, key, getattr(base, key, None), f"{base.__name__}.{key}")
                yield item, f"{base.__name__}.{key}"

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
        for part in ("__code__", "__defaults__", "__kwdefaults__"):
            item = getattr(function, part)
            yield self._place(getattr, function, part, item, _joined(name, part))
        if vars(function):
            yield from self._look_into_dict(vars(function), name)
        yield from self._look_into_globals(function)

    def _look_into_globals(self, function: types.FunctionType) -> Iterator[tuple[object, str]]:
        """What a function, and those inside of it, name: data, objects, functions, attributes of modules."""
        known, names = function.__globals__, _names_in(function.__code__)
        for variable in names:
            if variable not in known:
                continue
            item = known[variable]
            if isinstance(item, types.ModuleType):
                if not _is_foreign(item.__name__):
                    for key in names & set(vars(item)):
                        yield self._place(getitem, vars(item), key, vars(item)[key], f"{item.__name__}.{key}")
            elif not (isinstance(item, _DEFINITIONS) and _is_foreign(item.__module__ or "")):
                yield self._place(getitem, known, variable, item, f"{function.__module__}.{variable}")

    def _look_into_object(self, value: object, name: str) -> Iterator[tuple[object, str]]:
        own = getattr(value, "__dict__", None)
        if _is_foreign(type(value).__module__) and not isinstance(value, dict | types.SimpleNamespace):
            return
        if isinstance(own, dict):
            self._sized.append((own, len(own), name or type(value).__name__))
            for key, item in list(own.items()):
                yield self._place(getitem, own, key, item, _joined(name, str(key)))
        for slot in _slots(type(value)):
            if hasattr(value, slot):
                yield self._place(getattr, value, slot, getattr(value, slot), _joined(name, slot))
        yield type(value), type(value).__name__

    def _place(self, read: Any, holder: object, key: object, item: object, name: str) -> tuple[object, str]:
        self._places.append((read, holder, key, name))
        return item, name


_pointer: Callable[[torch.Tensor], int] = torch.Tensor.data_ptr
_stride: Callable[[torch.Tensor], Any] = torch.Tensor.stride
_shape: Callable[[torch.Tensor], Any] = torch.Tensor.size
_dtype = attrgetter("dtype")


def _has_content(value: object) -> bool:
    """Whether a value is a container whose items cannot be read one by one at fixed places."""
    if isinstance(value, set | frozenset | deque | bytearray | types.MappingProxyType):
        return True
    numpy: Any = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, numpy.ndarray)


def _content(value: Any) -> object:
    if isinstance(value, bytearray):
        return bytes(value)
    if isinstance(value, types.MappingProxyType):
        return tuple((key, id(item)) for key, item in value.items())
    if isinstance(value, set | frozenset | deque):
        return tuple(map(id, value))
    return (value.shape, value.strides, value.dtype.str, value.tobytes() if value.nbytes <= _MAX_CONTENT_BYTES else b"")


def _is_foreign(module: str) -> bool:
    root = module.partition(".")[0]
    return root in _FOREIGN or (root in sys.stdlib_module_names and root not in _HOLDERS)


def _names_in(code: types.CodeType) -> set[str]:
    """Names that a function's code looks up, and the code of functions and comprehensions inside of it."""
    inner = (c for c in code.co_consts if isinstance(c, types.CodeType))
    return set(chain(code.co_names, *map(_names_in, inner)))


def _slots(kind: type) -> Iterator[str]:
    return (slot for base in kind.__mro__ if not _is_foreign(base.__module__) for slot in _slots_of(base))


def _slots_of(base: type) -> Iterable[str]:
    declared = base.__dict__.get("__slots__", ())
    names = (declared,) if isinstance(declared, str) else tuple(declared)
    hidden = (n.startswith("__") and not n.endswith("__") for n in names)
    return [f"_{base.__name__.lstrip('_')}{n}" if h else n for n, h in zip(names, hidden, strict=True)]


def _joined(name: str, key: str) -> str:
    return f"{name}.{key}" if name else key
