"""Looks at the machine and says what works, what does not, and the one thing that fixes it. Changes nothing,
except that the call table may be compiled into the cache folder.

Each check is a function of what it needs; the machine's tools are reached through `Tools`, so that a check can be tried
against a machine that is not there.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, Protocol

from kernelforge.errors import EnvironmentMissing, ForgeError
from kernelforge.report.rows import DoctorLine
from kernelforge.report.units import format_bytes
from kernelforge.settings import Settings, secret

Status = Literal["ok", "warn", "fail"]

MIN_PYTHON = (3, 11)
MIN_TORCH = (2, 10)
LOW_DISK_BYTES = 2 << 30
NO_DISK_BYTES = 200 << 20
TOOL_TIMEOUT_S = 20.0


class Tools(Protocol):
    """How `doctor` reaches programs of the machine."""

    def which(self, name: str) -> str | None:
        """Path of a program, or None."""
        ...

    def output(self, command: Sequence[str]) -> str | None:
        """Standard output of a command, or None if it cannot be run, fails or takes too long."""
        ...


class SystemTools:
    """The real machine."""

    def which(self, name: str) -> str | None:
        return shutil.which(name)

    def output(self, command: Sequence[str]) -> str | None:
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=TOOL_TIMEOUT_S, check=False)
        except (OSError, subprocess.TimeoutExpired):
            return None
        return done.stdout if done.returncode == 0 else None


def diagnose(settings: Settings, *, tools: Tools | None = None) -> list[DoctorLine]:
    """All checks, in the order in which a person would fix them. Imports torch."""
    tools = tools or SystemTools()
    gpu = _gpu_query(tools)
    return [
        check_python(sys.version_info[:3]),
        *check_torch(gpu_present=bool(gpu)),
        check_package("apache-tvm-ffi", why="packages cannot be dispatched"),
        *check_cxx(settings, tools),
        check_native(settings),
        check_fence(tools, root=os.geteuid() == 0),
        check_nvcc(settings, tools, gpu_present=bool(gpu)),
        *check_cache(settings.cache_dir),
        check_language_models(settings),
        *check_gpus(gpu, tools),
        check_sanitizer(settings, gpu_present=bool(gpu)),
        check_profiler(tools, gpu_present=bool(gpu)),
    ]


def check_python(version: tuple[int, ...]) -> DoctorLine:
    """The interpreter is new enough."""
    text = ".".join(map(str, version))
    if version[:2] >= MIN_PYTHON:
        return _line("Python", "ok", text)
    return _line("Python", "fail", f"{text} is too old", "install Python 3.11 or newer")


def check_torch(*, gpu_present: bool) -> list[DoctorLine]:
    """torch loads, is new enough, and its CUDA matches the machine."""
    try:
        import torch
    except (ImportError, OSError) as error:
        return [_line("torch", "fail", f"does not load: {error}", "pip install 'torch>=2.10'")]
    version = str(torch.__version__)
    numbers = tuple(int(n) for n in version.split("+", maxsplit=1)[0].split(".")[:2])
    lines = [_line("torch", "ok", f"{version}, {torch.get_num_threads()} threads")]
    if numbers < MIN_TORCH:
        lines = [_line("torch", "fail", f"{version} is too old", "pip install --upgrade 'torch>=2.10'")]
    cuda: str | None = torch.version.cuda
    return [*lines, judge_cuda(cuda, usable=torch.cuda.is_available(), gpu_present=gpu_present)]


def judge_cuda(built_with: str | None, *, usable: bool, gpu_present: bool) -> DoctorLine:
    """Whether torch can use the GPU. built_with: torch's CUDA version, None for a CPU build."""
    if usable:
        return _line("CUDA in torch", "ok", f"{built_with}, usable")
    if not gpu_present:
        return _line("CUDA in torch", "ok", "no NVIDIA GPU here; models run on the CPU")
    if built_with is None:
        fix = "install a CUDA build of torch"
        return _line("CUDA in torch", "warn", "this torch is a CPU build, but the machine has a GPU", fix)
    fix = "update the NVIDIA driver, or install a torch that was built for an older CUDA"
    return _line("CUDA in torch", "warn", f"torch was built for CUDA {built_with} and cannot use the GPU", fix)


def check_package(distribution: str, *, why: str) -> DoctorLine:
    """A Python distribution is installed. Looks at metadata only: importing may be slow."""
    try:
        return _line(distribution, "ok", importlib.metadata.version(distribution))
    except importlib.metadata.PackageNotFoundError:
        return _line(distribution, "fail", f"missing: {why}", f"pip install {distribution}")


def check_cxx(settings: Settings, tools: Tools) -> list[DoctorLine]:
    """A C++ compiler works, and takes OpenMP."""
    from kernelforge.build.backends.cpp import find_cxx

    try:
        path = str(find_cxx(settings))
    except EnvironmentMissing as error:
        return [_line("C++ compiler", "fail", error.message, error.hint)]
    version = tools.output([path, "--version"])
    if version is None:
        return [_line("C++ compiler", "fail", f"{path} does not run", "reinstall it, or set KFORGE_CXX")]
    lines = [_line("C++ compiler", "ok", f"{path}: {_first_line(version)}")]
    # The preprocessor defines _OPENMP only if -fopenmp is understood; nothing is compiled or linked.
    macros = tools.output([path, "-fopenmp", "-dM", "-E", "-x", "c++", os.devnull]) or ""
    found = next((m.split()[-1] for m in macros.splitlines() if m.startswith("#define _OPENMP ")), "")
    if found:
        return [*lines, _line("OpenMP", "ok", f"version {found}")]
    fix = "install the compiler's OpenMP support (libomp-dev for clang++), or use g++"
    return [*lines, _line("OpenMP", "warn", "the compiler does not take -fopenmp: kernels would use one core", fix)]


def check_native(settings: Settings) -> DoctorLine:
    """Whether calls of a model can be looked up in compiled code. Builds it, if that was not done before."""
    from kernelforge.native.extension import why_not

    reason = why_not(settings)
    if not reason:
        return _line("call table", "ok", "compiled")
    fix = "install a C compiler and Python's development headers"
    return _line("call table", "warn", f"in Python, some microseconds more per call: {reason}", fix)


def check_nvcc(settings: Settings, tools: Tools, *, gpu_present: bool) -> DoctorLine:
    """The CUDA compiler that builds would use."""
    from kernelforge.build.backends.cuda import find_nvcc

    try:
        path = str(find_nvcc(settings))
    except EnvironmentMissing as error:
        if gpu_present or settings.nvcc:
            return _line("nvcc", "warn", f"{error.message}: no CUDA kernel can be built", error.hint)
        return _line("nvcc", "ok", "not found; not needed without an NVIDIA GPU")
    version = tools.output([path, "--version"])
    release = next((line.strip() for line in (version or "").splitlines() if "release" in line), "")
    if not release:
        return _line("nvcc", "warn", f"{path} does not run", "reinstall the CUDA toolkit, or set KFORGE_NVCC")
    return _line("nvcc", "ok", f"{path}: {release}")


def check_language_models(settings: Settings) -> DoctorLine:
    """Which providers of language models have a key. Shows no part of one."""
    from kernelforge.generate.llm.config import key_variables

    name = "language models"
    if importlib.util.find_spec("pydantic_ai") is None:
        return _line(name, "ok", "not installed; only --generator llm:PROVIDER/MODEL needs kernelforge[llm]")
    try:
        variables = key_variables(settings)
    except ForgeError as error:
        return _line(name, "warn", error.message, error.hint)
    words = []
    for provider, variable in sorted(variables.items()):
        state = f"{variable} is {'set' if secret(variable) else 'not set'}" if variable else "needs no key"
        words.append(f"{provider}: {state}")
    return _line(name, "ok", "; ".join(words))


def check_cache(folder: Path) -> list[DoctorLine]:
    """The cache folder can be written to and has room."""
    existing = next(p for p in (folder, *folder.absolute().parents) if p.exists())
    fix = "set KFORGE_CACHE_DIR to a folder that can be written to"
    try:
        # Written where the folder will be made, so that looking leaves nothing behind.
        with tempfile.TemporaryFile(dir=existing) as probe:
            probe.write(b"kforge")
    except OSError as error:
        return [_line("cache", "fail", f"{folder}: {error.strerror or error}", fix)]
    return [_line("cache", "ok", str(folder)), judge_disk(shutil.disk_usage(existing).free)]


def judge_disk(free_bytes: int) -> DoctorLine:
    """Whether that much free space is enough for builds, examples and packages."""
    status: Status = "ok"
    if free_bytes < LOW_DISK_BYTES:
        status = "fail" if free_bytes < NO_DISK_BYTES else "warn"
    fix = "" if status == "ok" else "free some space, or set KFORGE_CACHE_DIR to another disk"
    return _line("disk", status, f"{format_bytes(free_bytes)} free", fix)


_GPU_FIELDS = ("index", "name", "driver_version", "clocks.sm", "clocks.max.sm", "persistence_mode", "mig.mode.current")


def _gpu_query(tools: Tools) -> list[list[str]]:
    """One row of `_GPU_FIELDS` per GPU; empty without a working nvidia-smi."""
    if tools.which("nvidia-smi") is None:
        return []
    text = tools.output(["nvidia-smi", f"--query-gpu={','.join(_GPU_FIELDS)}", "--format=csv,noheader,nounits"])
    rows = [[cell.strip() for cell in line.split(",")] for line in (text or "").splitlines()]
    return [row for row in rows if len(row) == len(_GPU_FIELDS)]


def check_gpus(rows: Sequence[Sequence[str]], tools: Tools) -> list[DoctorLine]:
    """Each GPU with its clocks, and whether another process is using one (which spoils timings)."""
    if not rows:
        return [_line("GPU", "ok", "no NVIDIA GPU found")]
    lines = [_gpu_line(row) for row in rows]
    query = ["nvidia-smi", "--query-compute-apps=pid,process_name", "--format=csv,noheader"]
    others = [line.strip() for line in (tools.output(query) or "").splitlines() if line.strip()]
    if others:
        fix = "stop them, or time on a GPU that nothing else uses"
        return [*lines, _line("GPU processes", "warn", f"{len(others)} running: {'; '.join(others[:3])}", fix)]
    return [*lines, _line("GPU processes", "ok", "none")]


def _gpu_line(row: Sequence[str]) -> DoctorLine:
    index, name, driver, clock, clock_max, persistence, mig = row
    detail = f"{name}, driver {driver}, SM clock {clock} of {clock_max} MHz"
    if mig == "Enabled":
        return _line(f"GPU {index}", "warn", f"{detail}, MIG on", "time on a whole GPU: a slice has other floors")
    if persistence == "Disabled":
        fix = "nvidia-smi -pm 1 (as root), so that clocks stay up between runs"
        return _line(f"GPU {index}", "warn", f"{detail}, persistence off", fix)
    return _line(f"GPU {index}", "ok", detail)


def check_fence(tools: Tools, *, root: bool) -> DoctorLine:
    """What keeps a running candidate from the network and from files: namespaces, which not every system allows."""
    kinds = ["--net", "--mount", "--ipc", "true"]
    own = " and as a user of its own" if root else ""
    if any(tools.output(["unshare", *user, *kinds]) is not None for user in ([], ["--user"])):
        return _line("fence", "ok", f"a candidate runs without network, its files read-only{own}")
    fix = "allow user namespaces here, or judge only what you would run yourself"
    return _line("fence", "warn", "a candidate can reach the network and this user's files", fix)


def check_sanitizer(settings: Settings, *, gpu_present: bool) -> DoctorLine:
    """The memory checker that certificates of CUDA kernels need."""
    from kernelforge.runner.sanitizers import find_sanitizer

    missing = "not found: kernels for this GPU are exported with --allow-unchecked only"
    return _gpu_tool("compute-sanitizer", find_sanitizer(settings), gpu_present=gpu_present, missing=missing)


def check_profiler(tools: Tools, *, gpu_present: bool) -> DoctorLine:
    """An optional tool of the CUDA toolkit."""
    return _gpu_tool("ncu", tools.which("ncu"), gpu_present=gpu_present, missing="not found: profiles CUDA candidates")


def _gpu_tool(name: str, path: Path | str | None, *, gpu_present: bool, missing: str) -> DoctorLine:
    if path:
        return _line(name, "ok", str(path))
    if not gpu_present:
        return _line(name, "ok", "not found; not needed without an NVIDIA GPU")
    return _line(name, "warn", missing, "install the CUDA toolkit and put its bin folder on PATH")


def _first_line(text: str) -> str:
    return next(iter(text.splitlines()), "")


def _line(name: str, status: Status, detail: str, fix: str = "") -> DoctorLine:
    return DoctorLine(name=name, status=status, detail=detail, fix=fix)
