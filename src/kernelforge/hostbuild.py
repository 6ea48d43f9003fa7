"""This package's own C sources, compiled on the machine that uses them, once per source and compiler.

Owns `compile_once`. Candidates are built elsewhere (`build/`): they come from outside and are handled with more care.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from functools import lru_cache
from importlib.resources import files
from pathlib import Path

from filelock import FileLock

from kernelforge.digest import digest
from kernelforge.errors import EnvironmentMissing, HarnessError
from kernelforge.settings import Settings

TIMEOUT_S = 300


def compile_once(package: str, source: str, command: Sequence[str], folder: Path, name: str) -> Path:
    """Where the compiled source is, compiled if it is not there. Safe with many processes on one folder.

    Args:
        package: "kernelforge.runner", say; source: the file in it.
        command: the compiler and its arguments, with {source} and {output} left open.
        name: of the compiled file; the key of everything that decides its bytes is put before the first dot.

    Raises:
        HarnessError: our own source does not compile.
        EnvironmentMissing: the folder cannot be written to.
    """
    text = files(package).joinpath(source).read_text()
    version = _version(command[0], Path(command[0]).stat().st_mtime_ns)
    key = digest({"source": text, "command": list(command), "version": version})[:24]
    stem, dot, suffix = name.partition(".")
    target = folder / f"{stem}-{key}{dot}{suffix}"
    if target.exists():
        return target
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{target}.lock"):
            if not target.exists():
                _build(command, source, text, target)
    except OSError as error:
        raise EnvironmentMissing(f"cannot write to the cache folder {folder}: {error}") from error
    return target


def find_c_compiler(settings: Settings) -> str:
    """The C compiler: the configured C++ compiler's own, else gcc, cc or clang.

    Raises:
        EnvironmentMissing: none is installed.
    """
    return find_tool((_c_sibling(settings.cxx), "gcc", "cc", "clang"), "C compiler", "KFORGE_CXX")


def find_tool(names: Sequence[str], what: str, variable: str) -> str:
    """The first of the names that is a program.

    Raises:
        EnvironmentMissing: none is.
    """
    for name in names:
        found = shutil.which(name) if name else None
        if found:
            return found
    raise EnvironmentMissing(f"no {what} found", hint=f"install one, or set {variable} to its path")


def _build(command: Sequence[str], name: str, text: str, target: Path) -> None:
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        path, built = Path(folder, name), Path(folder, "built")
        path.write_text(text)
        line = [part.format(source=path, output=built) for part in command]
        done = subprocess.run(line, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
        if done.returncode != 0:
            raise HarnessError(f"{name} does not compile: {' '.join(line)}\n{done.stderr[-4000:]}")
        built.chmod(0o755)
        built.replace(target)


def _c_sibling(cxx: str) -> str:
    """The C compiler that belongs to a C++ compiler, by name: g++-13 -> gcc-13."""
    path = Path(cxx)
    return os.fspath(path.with_name(path.name.replace("clang++", "clang").replace("g++", "gcc"))) if cxx else ""


@lru_cache(maxsize=8)
def _version(compiler: str, modified_ns: int) -> str:
    """What the compiler says of itself; `modified_ns` makes a replaced compiler another one."""
    del modified_ns
    done = subprocess.run([compiler, "--version"], capture_output=True, text=True, timeout=60, check=False)
    return done.stdout
