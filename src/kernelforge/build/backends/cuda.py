"""The CUDA backend: nvcc to a shared object with machine code and PTX for one architecture, static run time.

nvcc comes from KFORGE_NVCC, the PATH, CUDA_HOME, or its PyPI wheel. A first line `// kforge: arch=a` in the source asks
for the architecture-specific target (wgmma and setmaxnreg need sm_90a); such a binary runs on that architecture only.
"""

from __future__ import annotations

import importlib.util
import shutil
from dataclasses import dataclass
from pathlib import Path

from kernelforge.build.cache import BuildCache
from kernelforge.build.compile import DEPENDENCIES, Toolchain, build_with, compiler_version, tvm_ffi_include
from kernelforge.build.torch_abi import is_torch_source
from kernelforge.build.torch_build import build_torch
from kernelforge.build.types import Artifact, BuildFailure
from kernelforge.cards.types import Variant
from kernelforge.errors import EnvironmentMissing
from kernelforge.generate.types import Candidate
from kernelforge.settings import Settings

_ARCH_SPECIFIC = "// kforge: arch=a"


@dataclass(frozen=True, slots=True, kw_only=True)
class CudaBackend:
    """See the module's docstring. `arch` is "sm_90" and the like; `device` describes the GPU in words."""

    compiler: Path
    version: str
    arch: str
    device: str
    cache: BuildCache
    name: str = "cuda"

    def brief(self) -> str:
        return f"nvcc {self.version}; {self.device}; -O3 -std=c++17 for {self.arch}; no fast-math"

    def build(self, candidate: Candidate, variant: Variant, *, timeout_s: float = 120.0) -> Artifact | BuildFailure:
        specific = candidate.source.lstrip().startswith(_ARCH_SPECIFIC)
        toolchain = self._toolchain(self.arch + "a" if specific else self.arch, with_ptx=not specific)
        build = build_torch if is_torch_source(candidate.source) else build_with
        return build(toolchain, self.cache, candidate, variant, timeout_s=timeout_s)

    def _toolchain(self, arch: str, *, with_ptx: bool) -> Toolchain:
        number = arch.removeprefix("sm_")
        code = f"[sm_{number},compute_{number}]" if with_ptx else f"sm_{number}"
        flags = (
            "-std=c++17", "-O3", f"-gencode=arch=compute_{number},code={code}", "-Xptxas", "-v", "--cudart", "static",
            # Lines let a memory checker name the place; they are not part of the machine code. No kernel uses every
            # constant of the prelude, so 177 (declared, never referenced) would drown the warnings that matter.
            "-lineinfo", "-diag-suppress", "177",
            "-shared", "-Xcompiler", "-fPIC", "-Xlinker", "-Bsymbolic", "-isystem", str(tvm_ffi_include()),
            *DEPENDENCIES, "unit.cu", "-o", "kernel.so",
        )  # fmt: skip
        return Toolchain(
            backend="cuda",
            suffix=".cu",
            compiler=self.compiler,
            version=self.version,
            commands=(flags,),
            target=arch,
        )


def find_nvcc(settings: Settings) -> Path:
    """The CUDA compiler.

    Raises:
        EnvironmentMissing: none is installed, or the configured one does not exist.
    """
    if settings.nvcc:
        found = shutil.which(settings.nvcc)
        if found:
            return Path(found)
        raise EnvironmentMissing(
            f"KFORGE_NVCC={settings.nvcc} does not exist", hint="set it to nvcc's path, or unset it"
        )
    places = [shutil.which("nvcc"), *_wheel_places()]
    home = str(Path(settings.cuda_home) / "bin" / "nvcc") if settings.cuda_home else None
    for place in [*places, home, "/usr/local/cuda/bin/nvcc"]:
        if place and Path(place).is_file():
            return Path(place)
    raise EnvironmentMissing(
        "the CUDA compiler nvcc was not found", hint="install the CUDA toolkit or `pip install nvidia-cuda-nvcc`"
    )


def _wheel_places() -> list[str]:
    spec = importlib.util.find_spec("nvidia")
    roots = list(spec.submodule_search_locations or []) if spec else []
    return [str(Path(root) / sub / "bin" / "nvcc") for root in roots for sub in ("cu13", "cuda_nvcc")]


def present_arch() -> tuple[str, str]:
    """Architecture and description of GPU 0: ("sm_90", "NVIDIA H200, 132 SMs ...").

    Raises:
        EnvironmentMissing: no GPU, or a torch without CUDA.
    """
    import torch

    if not torch.cuda.is_available():
        raise EnvironmentMissing("no CUDA device is available to torch", hint="use --device cpu, or name an arch")
    p = torch.cuda.get_device_properties(0)
    # Missing from torch's type stubs, present since torch 2.4.
    shared_bytes: int = getattr(p, "shared_memory_per_block_optin", p.shared_memory_per_block)
    words = (
        f"{p.name}, compute capability {p.major}.{p.minor}, {p.multi_processor_count} SMs, "
        f"{p.L2_cache_size >> 20} MiB L2, {shared_bytes >> 10} KiB shared memory a block at most"
    )
    return f"sm_{p.major}{p.minor}", words


def _create(settings: Settings, arch: str) -> CudaBackend:
    compiler = find_nvcc(settings)
    name, words = (arch, f"target {arch}") if arch else present_arch()
    return CudaBackend(
        compiler=compiler, version=compiler_version(compiler), arch=name, device=words,
        cache=BuildCache(folder=settings.cache_dir / "builds"),
    )  # fmt: skip


BACKEND_FACTORY = _create
