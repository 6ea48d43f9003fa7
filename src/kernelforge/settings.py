"""The settings of a process, read once. The only module that reads `os.environ`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import platformdirs

PREFIX = "KFORGE_"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What the environment says.

    Attributes:
        cache_dir: where built binaries and the runner live; content-addressed, safe to delete.
        library: keep certified kernels, and propose them again; library_dir: where they are kept.
        disabled: the kill switch: every dispatch falls back to eager.
        native: look calls up in compiled code, where it can be built; else in Python.
        cxx: the C++ compiler to use, or "" to look for g++ and clang++.
        nvcc: the CUDA compiler to use, or "" to look for it.
        cuda_home: CUDA_HOME or CUDA_PATH of the environment, or "".
        strict_tools: a missing tool is a failure, not a skip (set in CI).
        no_color: never print colour.
    """

    cache_dir: Path
    library: bool
    library_dir: Path
    disabled: bool
    native: bool
    cxx: str
    nvcc: str
    cuda_home: str
    strict_tools: bool
    no_color: bool


def load_settings(environ: Mapping[str, str] | None = None) -> Settings:
    """Read the settings from `environ` (the process's own environment by default)."""
    env = os.environ if environ is None else environ

    def flag(name: str, default: str = "") -> bool:
        return env.get(name, default).lower() in {"1", "true", "yes", "on"}

    cache = env.get(PREFIX + "CACHE_DIR") or platformdirs.user_cache_dir("kernelforge")
    library = env.get(PREFIX + "LIBRARY_DIR") or Path(platformdirs.user_data_dir("kernelforge")) / "library"
    return Settings(
        cache_dir=Path(cache),
        library=flag(PREFIX + "LIBRARY", default="1"),
        library_dir=Path(library),
        disabled=flag(PREFIX + "DISABLE"),
        native=flag(PREFIX + "NATIVE", default="1"),
        cxx=env.get(PREFIX + "CXX", ""),
        nvcc=env.get(PREFIX + "NVCC", ""),
        cuda_home=env.get("CUDA_HOME") or env.get("CUDA_PATH") or "",
        strict_tools=flag(PREFIX + "STRICT_TOOLS"),
        no_color="NO_COLOR" in env,
    )
