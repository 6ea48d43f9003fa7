"""Finds the project that a command means when none is named, and names new ones. Owns no project format."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from kernelforge.errors import UsageError

SUFFIX = ".kforge"


def default_project(source: str) -> Path:
    """The project folder for a model source: "models/resnet.py" and "torchvision:resnet50" -> "resnet.kforge" ..."""
    tail = source.rsplit(":", maxsplit=1)[-1].rstrip("/")
    stem = re.sub(r"[^A-Za-z0-9._-]+", "_", Path(tail).name.removesuffix(".py").removesuffix(".json"))
    return Path((stem or "model") + SUFFIX)


def find_project(given: Path | None, *, folder: Path | None = None, option: bool = False) -> Path:
    """`given`, or the only project in the current folder.

    Args:
        option: the command takes the project as an option, no argument; what the error says to type.

    Raises:
        UsageError: none was given and there is not exactly one.
    """
    if given is not None:
        return given
    found = _projects(folder or Path())
    if len(found) == 1:
        return found[0]
    what = f"there are {len(found)} here: {', '.join(p.name for p in found)}" if found else "there is none here"
    raise UsageError(f"which project? {what}", hint=f"name its folder: {'-p ' if option else ''}NAME.kforge")


def projects_here(given: Path | None, *, folder: Path | None = None) -> list[Path]:
    """`given`, the option of a command, or all projects in the current folder.

    Raises:
        UsageError: none was given and there is none.
    """
    found = [given] if given is not None else _projects(folder or Path())
    if not found:
        raise UsageError("which project? there is none here", hint="name its folder: -p NAME.kforge")
    return found


def project_and_names(
    given: Path | None, names: Sequence[str], *, folder: Path | None = None
) -> tuple[Path, tuple[str, ...]]:
    """The project and the operators of a command that takes both: PROJECT may be left out if only one is here.

    So a first word that names no file, and has not the form of a project's name, is the first operator.

    Raises:
        UsageError: no project was given and there is not exactly one.
    """
    here = folder or Path()
    if given is not None and len(given.parts) == 1 and given.suffix != SUFFIX and not (here / given).exists():
        found = _projects(here)
        if len(found) == 1:
            return found[0], (str(given), *names)
    return find_project(given, folder=folder), tuple(names)


def _projects(folder: Path) -> list[Path]:
    return sorted(p for p in folder.glob("*" + SUFFIX) if p.is_dir())
