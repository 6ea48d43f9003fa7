"""The runner's binary: built once per source and compiler, kept in the cache folder."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal, TypeAlias

from kernelforge.hostbuild import compile_once, find_c_compiler, find_tool
from kernelforge.settings import Settings

Flavour: TypeAlias = Literal["cpu", "cpu-asan", "cuda"]

_WARNINGS = ("-Wall", "-Wextra")
# The executable brings libgomp into the global scope, where candidates find the GOMP_* and omp_* they leave undefined.
_LINK = ("-rdynamic", "-ldl", "-Wl,--no-as-needed", "-lgomp")
_SANITIZE = ("-DKFORGE_ASAN", "-fsanitize=address,undefined", "-fno-omit-frame-pointer")
_HOST = ("-std=gnu11", "-O2", "-g1", *_WARNINGS, "-fopenmp")


def runner_binary(flavour: Flavour, settings: Settings) -> Path:
    """The path of the runner, built if it is not in the cache. Safe with many processes on one cache.

    Raises:
        EnvironmentMissing: no C compiler, no nvcc for the CUDA flavour, or no writable cache.
        HarnessError: our own source does not compile.
    """
    folder = settings.cache_dir / "runner"
    command = _compiler(flavour, settings)
    return compile_once("kernelforge.runner", "kforge_runner.c", command, folder, f"kforge-runner-{flavour}")


def _compiler(flavour: Flavour, settings: Settings) -> tuple[str, ...]:
    """The command line with {source} and {output} left open."""
    if flavour == "cuda":
        found = find_tool((settings.nvcc, "nvcc", "/usr/local/cuda/bin/nvcc"), "nvcc", "KFORGE_NVCC")
        host = ("-g1", *_WARNINGS, "-fopenmp", "-rdynamic")
        return (
            os.fspath(Path(found).resolve()), "-O2", "-DKFORGE_CUDA", "-cudart", "static", "-Xcompiler",
            ",".join(host), "{source}", "-o", "{output}", "-ldl", "-Xlinker", "--no-as-needed", "-lgomp",
        )  # fmt: skip
    sanitize = _SANITIZE if flavour == "cpu-asan" else ()
    return (find_c_compiler(settings), *_HOST, *sanitize, "{source}", "-o", "{output}", *_LINK)
