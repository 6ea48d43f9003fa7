"""Builds sources of the torch ABI with torch's headers: a Python module for the present torch and Python.

Nothing of it ships. It is linked with torch's libraries and, like all candidates, without an OpenMP of its own.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import sysconfig
from dataclasses import replace
from pathlib import Path

from kernelforge.build.cache import BuildCache
from kernelforge.build.compile import DEPENDENCIES, Toolchain, build_with
from kernelforge.build.torch_abi import TORCH_ABI, call_of, torch_unit
from kernelforge.build.types import Artifact, BuildFailure
from kernelforge.cards.types import Variant
from kernelforge.errors import EnvironmentMissing
from kernelforge.generate.types import Candidate
from kernelforge.runner.protocol import TORCH_MODULE

LEAST_TIMEOUT_S = 600.0
"""torch's headers alone take half a minute, minutes on a busy machine."""
_LIBRARIES = ("c10", "c10_cuda", "torch_cpu", "torch_cuda", "torch", "torch_python")
_CUDA = (
    # As torch's own extension builder does: sources that were written for it count on that.
    "-D__CUDA_NO_HALF_OPERATORS__", "-D__CUDA_NO_HALF_CONVERSIONS__", "-D__CUDA_NO_BFLOAT16_CONVERSIONS__",
    "-D__CUDA_NO_HALF2_OPERATORS__", "--expt-relaxed-constexpr", "--expt-extended-lambda",
)  # fmt: skip


def build_torch(
    toolchain: Toolchain, cache: BuildCache, candidate: Candidate, variant: Variant, *, timeout_s: float
) -> Artifact | BuildFailure:
    """Build a source of the torch ABI.

    Args:
        toolchain: of the C ABI; compiler and target are its.

    Raises:
        EnvironmentMissing: Python's headers are not here.
    """
    call = call_of(candidate.source, variant)
    if isinstance(call, str):
        reason = "missing_launch" if "defines no" in call else "wrong_signature"
        return BuildFailure(reason=reason, detail=call)
    chain = _cuda(toolchain) if toolchain.suffix == ".cu" else _cpp(toolchain)
    return build_with(chain, cache, candidate, variant, timeout_s=max(timeout_s, LEAST_TIMEOUT_S))


def _cpp(toolchain: Toolchain) -> Toolchain:
    march = (f"-march={toolchain.target}",) if toolchain.target.startswith("x86-64") else ()
    compile_flags = (
        "-std=c++20", "-O3", *march, "-fPIC", "-fvisibility=hidden", "-fopenmp", *_headers(), *DEPENDENCIES,
        "-c", "unit.cpp", "-o", "kernel.o",
    )  # fmt: skip
    return _for_torch(toolchain, (compile_flags, ("-shared", "kernel.o", "-o", "kernel.so", *_libraries())))


def _cuda(toolchain: Toolchain) -> Toolchain:
    architecture = next(flag for flag in toolchain.commands[0] if flag.startswith("-gencode"))
    flags = (
        "-std=c++20", "-O3", architecture, "-Xptxas", "-v", "--cudart", "static", "-lineinfo", "-diag-suppress", "177",
        *_CUDA, "-shared", "-Xcompiler", "-fPIC,-fvisibility=hidden", *_headers(), *DEPENDENCIES, "unit.cu",
        "-o", "kernel.so", *_libraries(),
    )  # fmt: skip
    return _for_torch(toolchain, (flags,))


def _for_torch(toolchain: Toolchain, commands: tuple[tuple[str, ...], ...]) -> Toolchain:
    return replace(
        toolchain, backend=TORCH_ABI, commands=commands, unit=torch_unit,
        version=f"{toolchain.version}; torch {importlib.metadata.version('torch')}",
    )  # fmt: skip


def _headers() -> tuple[str, ...]:
    """Flags for the headers of torch and Python, found without loading torch.

    Raises:
        EnvironmentMissing: Python came without its headers.
    """
    python = Path(sysconfig.get_paths()["include"])
    if not (python / "Python.h").is_file():
        raise EnvironmentMissing(
            f"a kernel of the torch ABI needs Python.h, which is not in {python}",
            hint="install Python's headers (python3-dev), or write the kernel for the C ABI",
        )
    include = _torch() / "include"
    folders = (include, include / "torch" / "csrc" / "api" / "include", python)
    return (
        f"-DTORCH_EXTENSION_NAME={TORCH_MODULE}",
        *(flag for folder in folders for flag in ("-isystem", str(folder))),
    )


def _libraries() -> tuple[str, ...]:
    folder = _torch() / "lib"
    return (f"-L{folder}", *(f"-l{name}" for name in _LIBRARIES if (folder / f"lib{name}.so").exists()))


def _torch() -> Path:
    spec = importlib.util.find_spec("torch")
    assert spec is not None and spec.submodule_search_locations
    return Path(spec.submodule_search_locations[0])
