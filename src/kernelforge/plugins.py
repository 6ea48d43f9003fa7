"""Plug-in lookup: one file per plug-in in its kind's folder, or an entry point of a third party; found by name.

A kind is a package (for example `kernelforge.operators`) whose modules each export one object under a fixed
attribute (for example `OPERATOR`). Third parties register the module under the entry-point group of the same name.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import pkgutil

from kernelforge.errors import NotFound


def plugin_names(package: str) -> tuple[str, ...]:
    """Names of all plug-ins of a kind, sorted: modules of `package` without a leading underscore, then entry points."""
    module = importlib.import_module(package)
    own = {info.name for info in pkgutil.iter_modules(module.__path__) if _is_plugin(info.name)}
    foreign = {point.name for point in importlib.metadata.entry_points(group=package)}
    return tuple(sorted(own | foreign))


def load_plugin(package: str, name: str, attribute: str) -> object:
    """Import the plug-in `name` of the kind `package` and return its `attribute`.

    Raises:
        NotFound: no module and no entry point has that name.
    """
    if _is_plugin(name) and name.isidentifier() and importlib.util.find_spec(f"{package}.{name}") is not None:
        return getattr(importlib.import_module(f"{package}.{name}"), attribute)
    for point in importlib.metadata.entry_points(group=package, name=name):
        return getattr(point.load(), attribute)
    known = ", ".join(plugin_names(package))
    raise NotFound(f"no plug-in {name!r} in {package}", hint=f"known: {known}")


def _is_plugin(name: str) -> bool:
    return not name.startswith("_") and name != "types"
