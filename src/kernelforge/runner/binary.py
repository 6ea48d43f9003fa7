"""The runner's binary: built once per source and compiler, kept in the cache folder."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Literal, TypeAlias

from filelock import FileLock

from kernelforge.digest import digest
from kernelforge.errors import EnvironmentMissing, HarnessError
from kernelforge.settings import Settings

Flavour: TypeAlias = Literal["cpu", "cpu-asan", "cuda"]

_WARNINGS = ("-Wall", "-Wextra")
# The executable brings libgomp into the global scope, where candidates find the GOMP_* and omp_* they leave undefined.
_LINK = ("-rdynamic", "-ldl", "-Wl,--no-as-needed", "-lgomp")
_HOST = ("-std=gnu11", "-O2", "-g1", *_WARNINGS, "-fopenmp")


def runner_binary(flavour: Flavour, settings: Settings) -> Path:
    """The path of the runner, built if it is not in the cache. Safe with many processes on one cache.

    Raises:
        EnvironmentMissing: no C compiler, or no nvcc for the CUDA flavour.
        HarnessError: our own source does not compile.
    """
    source = files("kernelforge.runner").joinpath("kforge_runner.c").read_text()
    command = _compiler(flavour, settings)
    version = _version(command[0], Path(command[0]).stat().st_mtime_ns)
    key = digest({"source": source, "command": list(command), "version": version})[:24]
    folder = settings.cache_dir / "runner"
    target = folder / f"kforge-runner-{flavour}-{key}"
    if target.exists():
        return target
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{target}.lock"):
        if not target.exists():
            _build(command, source, target)
    return target


def _build(command: tuple[str, ...], source: str, target: Path) -> None:
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        path, built = Path(folder, "kforge_runner.c"), Path(folder, "runner")
        path.write_text(source)
        line = [part.format(source=path, output=built) for part in command]
        done = subprocess.run(line, capture_output=True, text=True, timeout=300, check=False)
        if done.returncode != 0:
            raise HarnessError(f"the runner does not compile: {' '.join(line)}\n{done.stderr[-4000:]}")
        built.chmod(0o755)
        built.replace(target)


def _compiler(flavour: Flavour, settings: Settings) -> tuple[str, ...]:
    """The command line with {source} and {output} left open."""
    if flavour == "cuda":
        nvcc = _find((settings.nvcc, "nvcc", "/usr/local/cuda/bin/nvcc"), "nvcc", "KFORGE_NVCC")
        host = ("-g1", *_WARNINGS, "-fopenmp", "-rdynamic")
        return (
            nvcc, "-O2", "-DKFORGE_CUDA", "-cudart", "static", "-Xcompiler", ",".join(host), "{source}",
            "-o", "{output}", "-ldl", "-Xlinker", "--no-as-needed", "-lgomp",
        )  # fmt: skip
    compiler = _find((_c_sibling(settings.cxx), "gcc", "cc", "clang"), "C compiler", "KFORGE_CXX")
    sanitize = ("-fsanitize=address,undefined", "-fno-omit-frame-pointer") if flavour == "cpu-asan" else ()
    return (compiler, *_HOST, *sanitize, "{source}", "-o", "{output}", *_LINK)


def _c_sibling(cxx: str) -> str:
    """The C compiler that belongs to a C++ compiler, by name: g++-13 -> gcc-13."""
    path = Path(cxx)
    return str(path.with_name(path.name.replace("clang++", "clang").replace("g++", "gcc"))) if cxx else ""


def _find(names: tuple[str, ...], what: str, variable: str) -> str:
    for name in names:
        found = shutil.which(name) if name else None
        if found:
            return os.fspath(Path(found).resolve()) if what == "nvcc" else found
    raise EnvironmentMissing(f"no {what} found", hint=f"install one, or set {variable} to its path")


@lru_cache(maxsize=8)
def _version(compiler: str, modified_ns: int) -> str:
    """What the compiler says of itself; `modified_ns` makes a replaced compiler another one."""
    del modified_ns
    done = subprocess.run([compiler, "--version"], capture_output=True, text=True, timeout=60, check=False)
    return done.stdout
