"""The settings of a process, read once. The only module that reads `os.environ`."""

from __future__ import annotations

import os
import re
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
        shadow: "1/N" compares every N-th hit of a kernel with PyTorch; "": none.
        launch_blocking: CUDA's own switch: every launch waits for its end, so that its errors are its own.
        native: look calls up in compiled code, where it can be built; else in Python.
        cxx: the C++ compiler to use, or "" to look for g++ and clang++.
        nvcc: the CUDA compiler to use, or "" to look for it.
        cuda_home: CUDA_HOME or CUDA_PATH of the environment, or "".
        strict_tools: a missing tool is a failure, not a skip (set in CI).
        no_color: never print colour.
        config_dir: where this user's configuration lives.
        llm_config: the file that says which language models there are, or "" to look for it.
        trust: packages that may be loaded whoever signed them, each "sha256:" and the digest of the file.
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
    config_dir: Path
    llm_config: str
    trust: tuple[str, ...] = ()
    shadow: str = ""
    launch_blocking: bool = False


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
        config_dir=Path(env.get(PREFIX + "CONFIG_DIR") or platformdirs.user_config_dir("kernelforge")),
        llm_config=env.get(PREFIX + "LLM_CONFIG", ""),
        trust=tuple(part.strip() for part in env.get(PREFIX + "TRUST", "").split(",") if part.strip()),
        shadow=env.get(PREFIX + "SHADOW", ""),
        launch_blocking=env.get("CUDA_LAUNCH_BLOCKING", "") == "1",
    )


def secret(name: str, environ: Mapping[str, str] | None = None) -> str:
    """The value of an environment variable that holds a key, or "". Not a field of `Settings`, which may be shown.

    Raises:
        ValueError: `name` is no name of a variable. It may be the key itself, so the message does not repeat it.
    """
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
        raise ValueError("not the name of an environment variable")
    env = os.environ if environ is None else environ
    return env.get(name, "").strip()
