"""What all backends share: run a compiler with a time limit, trim its output, keep the result in the cache."""

from __future__ import annotations

import os
import re
import resource
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from kernelforge.build.abi import glue, prelude
from kernelforge.build.cache import BuildCache
from kernelforge.build.types import Artifact, BuildFailure
from kernelforge.cards.types import Variant
from kernelforge.generate.types import Candidate

_LOG_LIMIT = 20_000
_DETAIL_LINES = 25
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_ASSEMBLY = re.compile(r"asm|##|%:%:|\?\?=")
"""Without one of these a source has no inline assembly, nor pastes the word together."""
LARGEST_FILE = 256 << 20
"""No file that a compiler writes may be larger, in bytes: a static array of gigabytes would fill the disk."""
MOST_MEMORY = 16 << 30
"""Address space of a compiler, in bytes."""
_TOO_LARGE = "the binary exceeds {} MiB: large tables are computed by the kernel, or kept in its workspace"


def full_source(candidate: Candidate, variant: Variant) -> str:
    """Prelude, glue and candidate as one translation unit; messages refer to the candidate's own lines.

    The candidate comes last: no macro of its own may change what is generated.
    """
    suffix = ".cu" if candidate.backend == "cuda" else ".cpp"
    return (
        f"{prelude(variant, candidate.backend)}\n"
        f'#line 1 "glue{suffix}"\n{glue(variant, candidate.backend)}\n'
        f'#line 1 "kernel{suffix}"\n{candidate.source}\n'
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Toolchain:
    """One compiler ready to use.

    Attributes:
        backend: "cpp", "cuda", or "torch" for the second ABI. suffix: of the source file.
        compiler: path; version: its own version line, part of the cache key.
        commands: argument lists, run in order in the scratch; `unit<suffix>` goes in, `kernel.so` comes out.
        target: what a machine needs to run the binary.
        headers: the folder of the compiler's own headers, if it does not take them for the system's.
        unit: makes the translation unit of a candidate.
    """

    backend: str
    suffix: str
    compiler: Path
    version: str
    commands: tuple[tuple[str, ...], ...]
    target: str
    headers: Path | None = None
    unit: Callable[[Candidate, Variant], str] = full_source


DEPENDENCIES = ("-MMD", "-MF", "unit.d")
"""Lets the first command write what the source includes, but for headers of the system."""


def tvm_ffi_include() -> Path:
    """The folder of tvm-ffi's C header, without importing the package (that loads torch)."""
    import importlib.util

    spec = importlib.util.find_spec("tvm_ffi")
    assert spec is not None and spec.submodule_search_locations
    return Path(spec.submodule_search_locations[0]) / "include"


def build_with(
    toolchain: Toolchain, cache: BuildCache, candidate: Candidate, variant: Variant, *, timeout_s: float
) -> Artifact | BuildFailure:
    """Build through the cache."""
    if not re.search(r"\blaunch\s*\(", _COMMENT.sub(" ", candidate.source)):
        return BuildFailure(reason="missing_launch", detail='the source defines no extern "C" int launch(...)')
    text = toolchain.unit(candidate, variant)
    flags = tuple(flag for command in toolchain.commands for flag in command)
    key = cache.key(text=text, compiler=toolchain.version, flags=flags, target=toolchain.target)
    cached = cache.get(key)
    if cached is not None:
        return replace(cached, source=candidate.source)
    scratch = cache.scratch()
    started = time.perf_counter()
    (scratch / f"unit{toolchain.suffix}").write_text(text)
    # Compilers quote the lines that they complain of from the file that `#line` names.
    (scratch / f"kernel{toolchain.suffix}").write_text(candidate.source + "\n")
    logs = []
    for command in toolchain.commands:
        code, log = _run([str(toolchain.compiler), *command], scratch, timeout_s)
        logs.append(log)
        if code != 0:
            shutil.rmtree(scratch, ignore_errors=True)
            if code is None:
                return BuildFailure(reason="build_timeout", detail=f"the compiler ran longer than {timeout_s:g} s")
            if re.search(r"[Ff]ile (size limit exceeded|too large)", log) or code == -signal.SIGXFSZ:
                return BuildFailure(reason="compile_error", detail=_TOO_LARGE.format(LARGEST_FILE >> 20))
            detail = trim_errors(log) or f"the compiler ended with status {code} and said nothing"
            return BuildFailure(reason=_reason(log), detail=detail)
    included = _files_of_this_machine(scratch / "unit.d", toolchain)
    refused = ""
    if included:
        refused = (
            f"kernel{toolchain.suffix} includes {included[0]}, a file of this machine: a kernel is one text, with "
            "headers of the compiler and the system only; paste what it needs"
        )
    elif _ASSEMBLY.search(candidate.source):
        # As written too: nvcc expands the device's side of a condition only.
        expanded = preprocess(toolchain, cache, candidate, variant)
        if expanded is None or _reads_files(candidate.source) or _reads_files(expanded):
            refused = f"kernel{toolchain.suffix} uses directives of the assembler that read files or make text of text"
    if refused:
        shutil.rmtree(scratch, ignore_errors=True)
        return BuildFailure(reason="compile_error", detail=refused)
    record = {
        "backend": toolchain.backend, "target": toolchain.target, "compiler": toolchain.version,
        "flags": list(_without_places(flags)),
        "log": "\n".join(logs)[:_LOG_LIMIT],
    }  # fmt: skip
    artifact = cache.put(key, scratch, record, seconds=time.perf_counter() - started)
    return replace(artifact, source=candidate.source)


def preprocess(
    toolchain: Toolchain, cache: BuildCache, candidate: Candidate, variant: Variant, *, timeout_s: float = 60.0
) -> str | None:
    """The whole translation unit as the compiler sees it, macros and headers expanded; None if it does not get so far.

    Without line markers where the compiler can leave them out; nvcc cannot.
    """
    scratch = cache.scratch()
    try:
        (scratch / f"unit{toolchain.suffix}").write_text(toolchain.unit(candidate, variant))
        outputs = {"-c", "-o", "-shared", "kernel.o", "kernel.so", *DEPENDENCIES}
        flags = [flag for flag in toolchain.commands[0] if flag not in outputs]
        bare = ("-P",) if toolchain.suffix == ".cpp" else ()
        code, text = _run([str(toolchain.compiler), *flags, "-E", *bare], scratch, timeout_s)
        return text if code == 0 else None
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _without_places(flags: Iterable[str]) -> Iterator[str]:
    """Flags without folders of headers and libraries: where they lie says nothing on another machine."""
    rest = iter(flags)
    for flag in rest:
        if flag == "-isystem":
            next(rest)
        elif not flag.startswith("-L"):
            yield flag


def _reads_files(text: str) -> bool:
    """Whether inline assembly of an expanded source may include files; literals are joined and unescaped before."""
    joined = re.sub(r'"\s*"', "", text)
    plain = re.sub(r"\\x([0-9a-fA-F]{1,2})", lambda m: chr(int(m[1], 16)), joined)
    plain = re.sub(r"\\([0-7]{1,3})", lambda m: chr(int(m[1], 8)), plain)
    return re.search(r"\.(incbin|include|macro|irpc?|altmacro)\b", plain, re.IGNORECASE) is not None


def _files_of_this_machine(dependencies: Path, toolchain: Toolchain) -> list[str]:
    """What a source includes besides headers of the compiler and the system: the build's key knows nothing of it."""
    folder, own = dependencies.parent, toolchain.headers
    words = re.findall(r"(?:\\\S|\\ |[^\s\\])+", dependencies.read_text())
    dependencies.unlink()
    _, _, *names = [word for word in words if word != ":"]  # the target and the unit itself
    # nvcc also lists what `#line` names: parts of the unit, and no files.
    files = [name for name in names if name != f"kernel{toolchain.suffix}" and (folder / name).exists()]
    return [name for name in files if own is None or not (folder / name).resolve().is_relative_to(own)]


def _run(command: Sequence[str], folder: Path, timeout_s: float) -> tuple[int | None, str]:
    """Exit code (None on time-out) and output. The compiler's whole process group dies with the limit."""
    environ = {**os.environ, "LC_ALL": "C"}
    with subprocess.Popen(
        command, cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, errors="replace", start_new_session=True, env=environ,
    ) as process:  # fmt: skip
        with suppress(ProcessLookupError):
            resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (LARGEST_FILE, LARGEST_FILE))
            resource.prlimit(process.pid, resource.RLIMIT_AS, (MOST_MEMORY, MOST_MEMORY))
        try:
            output, _ = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            return None, ""
        return process.returncode, output


def _reason(log: str) -> str:
    return "missing_launch" if re.search(r"undefined (reference|symbol).*\blaunch\b", log) else "compile_error"


def trim_errors(log: str) -> str:
    """The first errors of a compiler's output, without include stacks and with the source lines they quote."""
    lines = log.splitlines()
    first = next((i for i, line in enumerate(lines) if re.search(r"\b(error|undefined)\b", line)), 0)
    kept = [line for line in lines[first:] if not line.startswith(("In file included from", "                 from"))]
    more = len(kept) - _DETAIL_LINES
    return "\n".join(kept[:_DETAIL_LINES]) + (f"\n... {more} more lines" if more > 0 else "")


@cache
def compiler_version(compiler: Path) -> str:
    """First line with a version of `compiler --version`; identifies the tool chain in cache keys and records."""
    result = subprocess.run([str(compiler), "--version"], capture_output=True, text=True, check=False, timeout=60)
    lines = [line.strip() for line in result.stdout.splitlines() if re.search(r"\d+\.\d+", line)]
    return lines[-1] if "nvcc" in compiler.name and lines else (lines[0] if lines else compiler.name)
