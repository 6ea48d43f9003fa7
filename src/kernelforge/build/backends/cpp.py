"""The CPU backend: g++ or clang++ to a shared object for a named x86-64 level.

Candidates may use OpenMP. They are compiled with it and linked without its library: GOMP_* and omp_* stay undefined and
resolve against the one run time of the host process (torch's, or the runner's). A second run time beside torch's would
bring a second thread pool that fights with the first for the same cores.

The *checked form* of a candidate is the same source for the same target and at the same level of optimisation, which
a source can ask for, with AddressSanitizer and UBSan in it. It leaves their run time open as well: the runner of the
flavour `cpu-asan` brings it.
"""

from __future__ import annotations

import platform
import shutil
import subprocess
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

from kernelforge.build.cache import BuildCache
from kernelforge.build.compile import (
    DEPENDENCIES,
    Toolchain,
    build_with,
    compiler_version,
    preprocess,
    tvm_ffi_include,
)
from kernelforge.build.torch_abi import is_torch_source
from kernelforge.build.torch_build import build_torch
from kernelforge.build.types import Artifact, BuildFailure
from kernelforge.cards.types import Variant
from kernelforge.errors import EnvironmentMissing
from kernelforge.generate.types import Candidate
from kernelforge.settings import Settings

_LEVELS = (
    ("x86-64-v4", {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}),
    ("x86-64-v3", {"avx2", "bmi1", "bmi2", "f16c", "fma", "movbe"}),
    ("x86-64-v2", {"sse4_2", "ssse3", "popcnt", "cx16"}),
)
_CHECKED = (
    "-O3", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=undefined", "-fno-omit-frame-pointer",
)  # fmt: skip
_LOCALS = "-ftrivial-auto-var-init="


@dataclass(frozen=True, slots=True, kw_only=True)
class CppBackend:
    """See the module's docstring."""

    toolchain: Toolchain
    cache: BuildCache
    name: str = "cpp"

    def brief(self) -> str:
        return f"{self.toolchain.version}; target {self.toolchain.target}; OpenMP available; IEEE NaN semantics hold"

    def build(self, candidate: Candidate, variant: Variant, *, timeout_s: float = 120.0) -> Artifact | BuildFailure:
        build = build_torch if is_torch_source(candidate.source) else build_with
        return build(self.toolchain, self.cache, candidate, variant, timeout_s=timeout_s)

    def preprocess(self, candidate: Candidate, variant: Variant) -> str | None:
        """What the compiler makes of the source's macros, headers and conditions: the text that it compiles."""
        return preprocess(self.toolchain, self.cache, candidate, variant)


def cpu_target(cpuinfo: str | None = None) -> str:
    """The highest x86-64 level of this machine (from /proc/cpuinfo), or the machine's name on other architectures."""
    if platform.machine() not in {"x86_64", "AMD64"}:
        return platform.machine()
    text = Path("/proc/cpuinfo").read_text() if cpuinfo is None else cpuinfo
    flags = next((set(line.split(":", 1)[1].split()) for line in text.splitlines() if line.startswith("flags")), set())
    return next((level for level, needs in _LEVELS if needs <= flags), "x86-64")


def find_cxx(settings: Settings) -> Path:
    """The C++ compiler.

    Raises:
        EnvironmentMissing: none is installed, or the configured one does not exist.
    """
    for name in [settings.cxx] if settings.cxx else ["g++", "clang++"]:
        found = shutil.which(name)
        if found:
            return Path(found)
    what = f"the configured compiler {settings.cxx!r}" if settings.cxx else "a C++ compiler (g++ or clang++)"
    raise EnvironmentMissing(f"{what} was not found", hint="install g++, or set KFORGE_CXX to a compiler's path")


@cache
def fills_locals(compiler: Path) -> bool:
    """Whether the compiler can give every local variable without an initialiser a pattern (g++ from 12 on)."""
    command = [str(compiler), f"{_LOCALS}pattern", "-fsyntax-only", "-x", "c++", "/dev/null"]
    return subprocess.run(command, capture_output=True, check=False, timeout=60).returncode == 0


def checked_backend(
    settings: Settings, arch: str = "", *, locals_as: Literal["pattern", "zero"] = "pattern"
) -> CppBackend:
    """The backend of checked forms: they run in the runner flavour `cpu-asan` only.

    Args:
        locals_as: what locals without an initialiser hold, if the compiler can fill them; a result that depends on it
            is one of uninitialised memory.

    Raises:
        EnvironmentMissing: no compiler.
    """
    compiler = find_cxx(settings)
    filled = (f"{_LOCALS}{locals_as}",) if fills_locals(compiler) else ()
    return _backend(settings, arch, (*_CHECKED, *filled))


def plain_backend(settings: Settings, arch: str = "") -> CppBackend:
    """The backend of what runs and ships.

    Raises:
        EnvironmentMissing: no compiler.
    """
    return _backend(settings, arch, ("-O3",))


def _backend(settings: Settings, arch: str, options: tuple[str, ...]) -> CppBackend:
    compiler = find_cxx(settings)
    target = arch or cpu_target()
    march = (f"-march={target}",) if target.startswith("x86-64") else ()
    compile_flags = (
        "-std=c++17", *options, *march, "-fPIC", "-fopenmp", "-fno-math-errno", "-ffp-contract=fast",
        "-fno-trapping-math", "-isystem", str(tvm_ffi_include()), *DEPENDENCIES, "-c", "unit.cpp", "-o", "kernel.o",
    )  # fmt: skip
    link_flags = ("-shared", "-Wl,-Bsymbolic", "kernel.o", "-o", "kernel.so")
    toolchain = Toolchain(
        backend="cpp", suffix=".cpp", compiler=compiler, version=compiler_version(compiler),
        commands=(compile_flags, link_flags), target=target,
    )  # fmt: skip
    return CppBackend(toolchain=toolchain, cache=BuildCache(folder=settings.cache_dir / "builds"))


BACKEND_FACTORY = plain_backend
