"""What a model's forward may read beside its arguments: attributes, containers, closures, tensors. Owns `PythonState`.

A CUDA graph replays kernels and none of the Python around them, so it is right only while that Python would do the same
again. `PythonState` lists all places that can be reached from a model, tells after a run which of them the run has
changed, and before a replay, in a fraction of a millisecond, whether anything has changed since.
"""

from __future__ import annotations

import functools
import io
import itertools
import sys
import types
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from operator import attrgetter, is_
from typing import Any, TypeAlias

import torch
from torch.nn.modules import module as torch_module

from kernelforge.dispatch.reachable import (
    ReachedModules,
    is_foreign,
    is_foreign_code,
    is_foreign_definition,
    name_of,
    names_in,
)
from kernelforge.dispatch.signature import memory_id
from kernelforge.native.watch import Reader, Watch, length, reader_of_items, watch
from kernelforge.settings import load_settings

Place: TypeAlias = "tuple[Reader, Any, Any, str]"
"""How a value is read (`getattr` or a `reader_of_items`), from what, by which key; the place's name for people."""

MAX_PLACES = 200_000

_ATOMS = frozenset({
    bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, torch.layout, torch.Size,
})  # fmt: skip
_OPAQUE = _ATOMS | {types.CodeType, types.FrameType}
_PROXIES = (weakref.ProxyType, weakref.CallableProxyType)
_HOLDERS = frozenset({
    "argparse.Namespace", "types.SimpleNamespace", "configparser.ConfigParser", "configparser.RawConfigParser",
    "collections.UserDict", "collections.UserList", "collections.UserString", "collections.ChainMap",
    "functools.partialmethod", "functools.singledispatchmethod", "functools.cached_property",
})  # fmt: skip
"""Classes of the standard library whose instances hold a user's data or functions in their attributes."""
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
        self._kept: list[object] = []  # items whose ids are in `_contents`: no other object may be given one
        self._reached = ReachedModules()
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
        places = [(*place[:3], value) for place, value in zip(self._places, self._values, strict=True)]
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
            and sys.modules.keys().isdisjoint(self._reached.not_loaded)
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
            if type(now) is not type(before) or type(now) not in _ATOMS or repr(now) != repr(before):
                return name
            self._values[position] = now
        for holder, size, name in self._sized:
            if length(holder) != size:
                return name
        looks = zip(self._pointers, self._shapes, self._strides, self._dtypes, strict=True)
        for (name, tensor), look in zip(self.tensors, looks, strict=True):
            if (_pointer(tensor), _shape(tensor), _stride(tensor), _dtype(tensor)) != look:
                return f"the memory of {name}"
        for value, held, name in self._contents:
            if _content(value) != held:
                return f"the content of {name}"
        for name in sorted(self._reached.not_loaded & sys.modules.keys()):
            return f"the import of {name}"
        self._watch = self._watched()
        return ""

    def _walk(self, model: object) -> None:
        """Look into everything; what is found may name more attributes of modules, which are looked into in turn."""
        waiting: deque[tuple[object, str]] = deque([(model, "")])
        while waiting and self.complete:
            self._exhaust(waiting)
            waiting.extend(self._look_into_reached_modules())

    def _exhaust(self, waiting: deque[tuple[object, str]]) -> None:
        while waiting:
            value, name = waiting.popleft()
            if type(value) in _OPAQUE or id(value) in self._seen:
                continue
            self._seen[id(value)] = value  # held: its id must not be given to another object meanwhile
            if len(self._places) > MAX_PLACES:
                self.complete = False
                return
            waiting.extend(self._look_into(value, name))

    def _look_into(self, value: Any, name: str) -> Iterator[tuple[object, str]]:
        """List the places of one object, and yield what they hold."""
        if type(value) in _PROXIES:
            yield from self._look_behind_proxy(value, name)
        elif isinstance(value, types.ModuleType):
            self._reached.add(value)
        elif isinstance(value, torch.nn.Module):
            yield from self._look_into_module(value, name)
        elif isinstance(value, type):
            yield from self._look_into_class(value)
        elif isinstance(value, Iterator) and not isinstance(value, io.IOBase | itertools.count):
            self.iterators.append(name or "an iterator")
        else:
            yield from self._look_into_kind(value, name)
            yield from self._look_into_object(value, name)

    def _look_into_kind(self, value: Any, name: str) -> Iterator[tuple[object, str]]:
        """What an object holds because it is a tensor, a container or a function, or of a kind derived from these."""
        if isinstance(value, torch.Tensor):
            if value.layout is torch.strided and not value.is_meta:  # others have no one memory to look at
                self.tensors.append((name or "a tensor", value))
            yield from self._look_into_dict(vars(value), name or "a tensor", dotted=True)
        elif isinstance(value, weakref.ref):
            yield value(), name
        elif isinstance(value, dict):
            yield from self._look_into_dict(value, name)
        elif isinstance(value, list):
            self._sized.append((value, length(value), name or "a list"))
            for index, item in enumerate(list.__iter__(value)):
                yield self._place(list.__getitem__, value, index, item, f"{name}[{index}]")
        elif isinstance(value, tuple):
            for index, item in enumerate(tuple.__iter__(value)):
                yield item, f"{name}[{index}]"
        elif _has_content(value):
            items = _items(value)
            self._kept.append(items)
            self._contents.append((value, _content(value), name or type(value).__name__))
            self.complete = self.complete and getattr(value, "nbytes", 0) <= _MAX_CONTENT_BYTES
            yield from ((item, f"an item of {name}") for item in items)
        elif isinstance(value, types.FunctionType):
            yield from self._look_into_function(value, name)
        else:
            yield from ((part, _joined(name, key)) for key, part in _parts(value))

    def _look_behind_proxy(self, proxy: Any, name: str) -> Iterator[tuple[object, str]]:
        """A `weakref.proxy` does not say what it stands for, but it passes on its attributes and its class."""
        try:
            own, kind = getattr(proxy, "__dict__", None), proxy.__class__
        except ReferenceError:
            return
        if isinstance(own, dict):
            yield from self._look_into_dict(own, name, dotted=True)
        yield kind, kind.__name__

    def _look_into_reached_modules(self) -> Iterator[tuple[object, str]]:
        """Names that are new since the last look."""
        for name in self._reached.imports():
            yield self._place(dict.__getitem__, sys.modules, name, sys.modules[name], f"the import of {name}")
        for module, key in self._reached.attributes():
            own = vars(module)
            found = self._place(dict.__getitem__, own, key, own[key], f"{name_of(module)}.{key}")
            if not is_foreign_definition(own[key]):
                yield found

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
                yield self._place(dict.__getitem__, own, key, item, _joined(name, key))
        self._sized.append((own, len(own), name or type(module).__name__))
        self._place(getattr, module, "__dict__", own, _joined(name, "__dict__"))
        self._place(getattr, module, "__class__", type(module), _joined(name, "__class__"))
        for slot in _slots(type(module)):
            if hasattr(module, slot):
                yield self._place(getattr, module, slot, getattr(module, slot), _joined(name, slot))
        yield type(module), type(module).__name__

    def _look_into_class(self, kind: type) -> Iterator[tuple[object, str]]:
        """Attributes and methods of a class as they are stored, and its bases, as far as they are a user's."""
        if is_foreign(kind.__module__):
            return
        own = vars(kind)
        self._sized.append((own, len(own), kind.__name__))
        self._place(getattr, kind, "__mro__", kind.__mro__, f"{kind.__name__}.__mro__")
        for key, item in list(own.items()):
            if key not in {"__dict__", "__weakref__", "__doc__", "__module__"}:
                yield self._place(reader_of_items(own), own, key, item, f"{kind.__name__}.{key}")
        yield from ((base, base.__name__) for base in (*kind.__mro__[1:], type(kind)))

    def _look_into_dict(
        self, value: dict[Any, Any], name: str, *, dotted: bool = False
    ) -> Iterator[tuple[object, str]]:
        self._sized.append((value, length(value), name or "a dict"))
        read = reader_of_items(value)
        for key, item in list(dict.items(value)):
            yield self._place(read, value, key, item, _joined(name, str(key)) if dotted else f"{name}[{key!r}]")

    def _look_into_function(self, function: types.FunctionType, name: str) -> Iterator[tuple[object, str]]:
        """Cells, defaults, and what its code names."""
        for variable, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            try:
                item = cell.cell_contents
            except ValueError:
                continue
            yield self._place(getattr, cell, "cell_contents", item, _joined(name, variable))
        for part in ("__code__", "__defaults__", "__kwdefaults__"):
            item = getattr(function, part)
            yield self._place(getattr, function, part, item, _joined(name, part))
        yield from self._look_into_dict(vars(function), name, dotted=True)
        if not is_foreign_code(function):
            self._reached.add_code(function)
            yield from self._look_into_globals(function)

    def _look_into_globals(self, function: types.FunctionType) -> Iterator[tuple[object, str]]:
        """What a function, and those inside of it, read of their module: data, objects, functions, other modules."""
        known = function.__globals__
        for variable in sorted(names_in(function.__code__).globals & known.keys()):
            item = known[variable]
            found = self._place(dict.__getitem__, known, variable, item, f"{function.__module__}.{variable}")
            if not is_foreign_definition(item):
                yield found

    def _look_into_object(self, value: object, name: str) -> Iterator[tuple[object, str]]:
        """Attributes of an object of a user's class, or of one that holds what a user has put there."""
        kind = type(value)
        if is_foreign(kind.__module__) and not _is_holder(kind):
            return
        own = getattr(value, "__dict__", None)
        if isinstance(own, dict):
            self._place(getattr, value, "__dict__", own, _joined(name, "__dict__"))
            yield from self._look_into_dict(own, name or kind.__name__, dotted=True)
        self._place(getattr, value, "__class__", kind, _joined(name, "__class__"))
        for slot in _slots(kind):
            if hasattr(value, slot):
                yield self._place(getattr, value, slot, getattr(value, slot), _joined(name, slot))
        yield kind, kind.__name__

    def _place(self, read: Reader, holder: object, key: object, item: object, name: str) -> tuple[object, str]:
        self._places.append((read, holder, key, name))
        return item, name


_pointer: Callable[[torch.Tensor], int] = torch.Tensor.data_ptr
_stride: Callable[[torch.Tensor], Any] = torch.Tensor.stride
_shape: Callable[[torch.Tensor], Any] = torch.Tensor.size
_dtype = attrgetter("dtype")


def _has_content(value: object) -> bool:
    """Whether a value is a container whose items cannot be read one by one at fixed places."""
    if isinstance(value, set | frozenset | deque | bytearray | types.MappingProxyType | itertools.count):
        return True
    numpy: Any = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, numpy.ndarray)


def _items(value: Any) -> list[Any]:
    """The objects in such a container."""
    if isinstance(value, types.MappingProxyType):
        return [*value.keys(), *value.values()]
    if isinstance(value, set | frozenset | deque):
        return list(_iterated(value))
    return list(value.flat) if hasattr(value, "flat") and value.dtype.hasobject else []


def _content(value: Any) -> object:
    if isinstance(value, bytearray):
        return bytes(value)
    if isinstance(value, itertools.count):
        return repr(value)  # which says where it stands, and does not move it
    if isinstance(value, types.MappingProxyType):
        return tuple((key, id(item)) for key, item in value.items())
    if isinstance(value, set | frozenset | deque):
        return tuple(map(id, _iterated(value)))
    return (value.shape, value.strides, value.dtype.str, value.tobytes() if value.nbytes <= _MAX_CONTENT_BYTES else b"")


def _iterated(value: Any) -> Iterator[Any]:
    """Past the methods of a user's own kind."""
    kind = set if isinstance(value, set) else frozenset if isinstance(value, frozenset) else deque
    return kind.__iter__(value)


def _parts(value: Any) -> Iterator[tuple[str, object]]:
    """The functions and values in a descriptor, a bound method or another callable of the language itself."""
    if isinstance(value, property):
        yield from (("", f) for f in (value.fget, value.fset) if f is not None)
    elif isinstance(value, staticmethod | classmethod):
        yield "", value.__func__
    elif isinstance(value, functools._lru_cache_wrapper):
        yield "", value.__wrapped__
        yield "", vars(value)
    elif isinstance(value, types.MethodType):
        yield "", value.__self__
        yield getattr(value.__func__, "__name__", ""), value.__func__
    elif isinstance(value, types.BuiltinFunctionType):
        yield "", value.__self__
    elif isinstance(value, functools.partial):
        yield "", value.func
        yield "args", value.args
        yield "keywords", value.keywords
        yield "", vars(value)


def _is_holder(kind: type) -> bool:
    """Whether a foreign class's instances are looked into: an OrderedDict, say, takes attributes of any name."""
    return f"{kind.__module__}.{kind.__qualname__}" in _HOLDERS or (issubclass(kind, dict) and kind is not dict)


def _slots(kind: type) -> Iterator[str]:
    return (slot for base in kind.__mro__ if not is_foreign(base.__module__) for slot in _slots_of(base))


def _slots_of(base: type) -> Iterator[str]:
    declared = base.__dict__.get("__slots__", ())
    names = (declared,) if isinstance(declared, str) else tuple(declared)
    for name in names:
        if name.startswith("__") and not name.endswith("__"):
            yield f"_{base.__name__.lstrip('_')}{name}"
        elif name not in {"__dict__", "__weakref__"}:  # which is looked at elsewhere; which any new reference changes
            yield name


def _joined(name: str, key: str) -> str:
    return f"{name}.{key}" if name and key else name or key
