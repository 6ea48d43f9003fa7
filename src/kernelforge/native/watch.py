"""The compiled `Watch` (watch.c), or its like in Python where it cannot be had. Owns `watch`."""

from __future__ import annotations

import importlib.util
import logging
import sys
import sysconfig
from collections.abc import Sequence
from functools import cache
from importlib.machinery import ExtensionFileLoader
from operator import getitem, is_
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from kernelforge.errors import ForgeError
from kernelforge.hostbuild import compile_once, find_c_compiler
from kernelforge.settings import Settings

_LOG = logging.getLogger(__name__)
_MODULE = "kforge_watch"

Place: TypeAlias = "tuple[Any, Any, Any]"
"""A dict, a list, or any object; a key, a position, or the name of an attribute; the object that is there."""
Sized: TypeAlias = "tuple[Any, int]"
"""A container and its length."""


class Watch(Protocol):
    """Places and containers at one moment."""

    def unchanged(self) -> bool:
        """Whether every place holds the very object, and every container as many."""


def watch(places: Sequence[Place], sized: Sequence[Sized], settings: Settings) -> Watch:
    """Watch these, in C where that can be compiled here, else in Python in five times the time."""
    module = _load(settings)
    if module is None:
        return PythonWatch(places, sized)
    made: Watch = module.Watch(list(places), list(sized))
    return made


class PythonWatch:
    """The same without a compiler: columns, so that no line of Python runs for each place."""

    def __init__(self, places: Sequence[Place], sized: Sequence[Sized]) -> None:
        items = [p for p in places if isinstance(p[0], dict | list)]
        named = [p for p in places if not isinstance(p[0], dict | list)]
        self._items = [p[0] for p in items], [p[1] for p in items]
        self._names = [p[0] for p in named], [p[1] for p in named]
        self._values = [p[2] for p in items], [p[2] for p in named]
        self._containers, self._sizes = [s[0] for s in sized], [s[1] for s in sized]

    def unchanged(self) -> bool:
        try:
            return (
                all(map(is_, map(getitem, *self._items), self._values[0]))
                and all(map(is_, map(getattr, *self._names), self._values[1]))
                and list(map(len, self._containers)) == self._sizes
            )
        except (KeyError, IndexError, AttributeError, ValueError):
            return False


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
