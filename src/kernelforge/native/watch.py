"""The compiled `Watch` (watch.c), or its like in Python where it cannot be had. Owns `watch`."""

from __future__ import annotations

import importlib.util
import logging
import sys
import sysconfig
from collections.abc import Callable, Sequence
from functools import cache
from importlib.machinery import ExtensionFileLoader
from operator import call, getitem, is_
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from kernelforge.errors import ForgeError
from kernelforge.hostbuild import compile_once, find_c_compiler
from kernelforge.settings import Settings

_LOG = logging.getLogger(__name__)
_MODULE = "kforge_watch"

Reader: TypeAlias = "Callable[[Any, Any], Any]"
Place: TypeAlias = "tuple[Reader, Any, Any, Any]"
"""`getattr` or a `reader_of_items`, an object, the attribute's name or the item's key, and the object that is there."""
Sized: TypeAlias = "tuple[Any, int]"
"""A container and its `length`."""


class Watch(Protocol):
    """Places and containers at one moment."""

    def unchanged(self) -> bool:
        """Whether every place holds the very object, and every container as many."""


def watch(places: Sequence[Place], sized: Sequence[Sized], settings: Settings) -> Watch:
    """Watch these, in C where that can be compiled here, else in Python in five times the time."""
    module = _load(settings)
    if module is None:
        return PythonWatch(places, sized)
    marked = [(holder, key, value, read is getattr) for read, holder, key, value in places]
    made: Watch = module.Watch(marked, list(sized))
    return made


def reader_of_items(container: object) -> Reader:
    """What reads an item of a dict, a list or a mapping as watch.c does: past the methods of a user's own kind."""
    if isinstance(container, dict):
        return _item_without_default if hasattr(type(container), "__missing__") else dict.__getitem__
    return list.__getitem__ if isinstance(container, list) else getitem


def length(container: Any) -> int:
    """How many items there are, past the methods of a user's own kind of dict or list."""
    return _measure_of(container)(container)


class PythonWatch:
    """The same without a compiler: columns, so that no line of Python runs for each place."""

    def __init__(self, places: Sequence[Place], sized: Sequence[Sized]) -> None:
        self._columns: dict[Reader, tuple[list[Any], list[Any], list[Any]]] = {}
        for read, holder, key, value in places:
            holders, keys, values = self._columns.setdefault(read, ([], [], []))
            holders.append(holder)
            keys.append(key)
            values.append(value)
        self._containers, self._sizes = [s[0] for s in sized], [s[1] for s in sized]
        self._measures = [_measure_of(container) for container in self._containers]

    def unchanged(self) -> bool:
        try:
            return (
                all(
                    all(map(is_, map(read, held, keys), values)) for read, (held, keys, values) in self._columns.items()
                )
                and list(map(call, self._measures, self._containers)) == self._sizes
            )
        except (KeyError, IndexError, AttributeError, ValueError):
            return False


def _item_without_default(container: dict[Any, Any], key: object) -> Any:
    """Unlike `dict.__getitem__`, which asks `__missing__` for a key that is gone and so puts it back."""
    if not dict.__contains__(container, key):
        raise KeyError(key)
    return dict.__getitem__(container, key)


def _measure_of(container: object) -> Callable[[Any], int]:
    if isinstance(container, dict):
        return dict.__len__
    return list.__len__ if isinstance(container, list) else len


@cache
def _load(settings: Settings) -> Any:
    if not settings.native or not getattr(sys, "_is_gil_enabled", lambda: True)():
        return None
    include = sysconfig.get_path("include")
    if not Path(include, "Python.h").exists():
        return None
    try:
        command = (
            find_c_compiler(settings), "-std=gnu11", "-O2", "-Wall", "-Wextra", "-shared", "-fPIC", f"-I{include}",
            "{source}", "-o", "{output}",
        )  # fmt: skip
        name = f"{_MODULE}{sysconfig.get_config_var('EXT_SUFFIX')}"
        path = compile_once("kernelforge.native", "watch.c", command, settings.cache_dir / "native", name)
        loader = ExtensionFileLoader(_MODULE, str(path))
        spec = importlib.util.spec_from_loader(_MODULE, loader)
        assert spec is not None
        module: Any = importlib.util.module_from_spec(spec)
        loader.exec_module(module)
    except (ForgeError, ImportError, OSError) as error:
        _LOG.info("state is watched in Python: %s", error)
        return None
    return module
