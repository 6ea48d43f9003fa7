"""What code names: globals, attributes, modules that it imports. Owns `names_in`, `ReachedModules` and `is_foreign`."""

from __future__ import annotations

import dis
import importlib.util
import sys
import types
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import chain
from typing import Any
from weakref import WeakKeyDictionary

_FOREIGN = ("torch", "builtins", "logging", "threading", "abc", "collections", "enum", "functools", "typing", "numpy",
            "kernelforge")  # fmt: skip
"""Packages whose classes and functions are taken to stay as they are, as the standard library's."""


@dataclass(frozen=True, slots=True)
class Names:
    """What a function's code, and the code inside of it, looks up by name.

    Attributes:
        globals: variables of the module, read or written.
        attributes: of any object; also each text that could be one, for `getattr(module, "NAME")`.
        imports: level (0: absolute) and name of each module that is imported while it runs.
    """

    globals: frozenset[str]
    attributes: frozenset[str]
    imports: frozenset[tuple[int, str]]


_known: WeakKeyDictionary[types.CodeType, Names] = WeakKeyDictionary()


def names_in(code: types.CodeType) -> Names:
    names = _known.get(code)
    if names is None:
        names = _known[code] = _read(code)
    return names


def _read(code: types.CodeType) -> Names:
    inner = [names_in(c) for c in code.co_consts if isinstance(c, types.CodeType)]
    variables, attributes, imports = set[str](), set[str](), set[tuple[int, str]]()
    loaded: list[Any] = [0, None]  # what the two instructions before have loaded
    for instruction in dis.get_instructions(code):
        if instruction.opname == "EXTENDED_ARG":
            continue
        if instruction.opname == "IMPORT_NAME":  # after the loading of its level and of the names that are wanted
            imports.add((loaded[0], instruction.argval))
        elif instruction.opcode in dis.hasname:
            is_variable = instruction.opname.endswith(("_GLOBAL", "_GLOBALS", "_NAME"))
            (variables if is_variable else attributes).add(instruction.argval)
        loaded = [loaded[1], instruction.argval]
    texts = (c for c in code.co_consts if isinstance(c, str) and c.isidentifier())
    return Names(
        globals=frozenset(chain(variables, *(n.globals for n in inner))),
        attributes=frozenset(chain(attributes, texts, *(n.attributes for n in inner))),
        imports=frozenset(chain(imports, *(n.imports for n in inner))),
    )


class ReachedModules:
    """Modules of users that code can get hold of, and the names by which any of that code reads attributes.

    Which name is read from which module is not told apart: a module may be handed on, or be kept in an attribute.

    Attributes:
        not_loaded: modules that code imports when it runs, and that nobody has imported yet.
    """

    def __init__(self) -> None:
        self._modules: dict[int, tuple[types.ModuleType, set[str]]] = {}
        self._attributes: set[str] = set()
        self._imports: set[str] = set()
        self._new_imports: list[str] = []
        self.not_loaded: set[str] = set()

    def add(self, module: types.ModuleType) -> None:
        if not is_foreign(name_of(module)):
            self._modules.setdefault(id(module), (module, set()))

    def add_code(self, function: types.FunctionType) -> None:
        """Note what a function names."""
        names = names_in(function.__code__)
        self._attributes |= names.attributes
        for level, name in names.imports:
            for full in _imported(level, name, function.__globals__):
                if full in self._imports or is_foreign(full):
                    continue
                self._imports.add(full)
                if full in sys.modules:
                    self._new_imports.append(full)
                else:
                    self.not_loaded.add(full)

    def imports(self) -> list[str]:
        """Keys of `sys.modules` that code reads by importing while it runs, each once."""
        new, self._new_imports = self._new_imports, []
        return new

    def attributes(self) -> Iterator[tuple[types.ModuleType, str]]:
        """Each module with each name that some code uses and that the module has, once."""
        for module, listed in list(self._modules.values()):
            fresh = (self._attributes & vars(module).keys()) - listed
            listed.update(fresh)
            yield from ((module, key) for key in sorted(fresh))


def _imported(level: int, name: str, known: dict[str, Any]) -> Iterator[str]:
    """Full names of a module that is imported and of the packages that it is in."""
    if level:
        package = known.get("__package__") or str(known.get("__name__", "")).rpartition(".")[0]
        try:
            name = importlib.util.resolve_name("." * level + name, package)
        except ImportError:  # there are not as many packages around it: the import fails as well
            return
    parts = name.split(".")
    yield from (".".join(parts[:end]) for end in range(1, len(parts) + 1))


def name_of(module: types.ModuleType) -> str:
    return str(vars(module).get("__name__", ""))


def is_foreign(module: object) -> bool:
    """Whether a module of this name is torch's, the standard library's or another whose code is taken to stay."""
    return isinstance(module, str) and _is_foreign(module)


@cache
def _is_foreign(module: str) -> bool:
    root = module.partition(".")[0]
    return root in _FOREIGN or root in sys.stdlib_module_names


def is_foreign_definition(value: Any) -> bool:
    """Whether a class or a function is one of such a module, and holds nothing of a user. An object is its maker's."""
    kind = type(value)  # what isinstance() would ask, a dead weakref.proxy does not answer
    if kind is types.FunctionType:
        # A decorator's function says by `functools.wraps` that it is another's, and holds the one that it decorates.
        return is_foreign(value.__module__) and is_foreign_code(value) and not value.__closure__
    return issubclass(kind, type) and is_foreign(value.__module__)


def is_foreign_code(function: types.FunctionType) -> bool:
    return is_foreign(function.__globals__.get("__name__"))
