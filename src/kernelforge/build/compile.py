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
from kernelforge.build.confinement import (
    assembler_reads_files,
    compiler_environment,
    dependency_files,
    embeds_files,
    first_outside,
    header_folders,
    makes_directives,
    traced_files,
    tracing_flags,
)
from kernelforge.build.diagnosis import Words, trim_errors
from kernelforge.build.types import Artifact, BuildFailure
from kernelforge.cards.types import Variant
from kernelforge.generate.types import Candidate

_LOG_LIMIT = 20_000
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
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
        unit: makes the translation unit of a candidate.
    """

    backend: str
    suffix: str
    compiler: Path
    version: str
    commands: tuple[tuple[str, ...], ...]
    target: str
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
    try:
        built = _Build(toolchain, candidate, scratch, timeout_s).run(text)
        if isinstance(built, BuildFailure):
            return built
        record = {
            "backend": toolchain.backend, "target": toolchain.target, "compiler": toolchain.version,
            "flags": list(_without_places(flags)),
            "log": built[:_LOG_LIMIT],
        }  # fmt: skip
        artifact = cache.put(key, scratch, record, seconds=time.perf_counter() - started)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return replace(artifact, source=candidate.source)


class _Build:
    """One build in its scratch. Nothing of what a compiler says or makes gets out before it is known what it read."""

    def __init__(self, toolchain: Toolchain, candidate: Candidate, scratch: Path, timeout_s: float) -> None:
        self._chain, self._candidate, self._scratch, self._timeout_s = toolchain, candidate, scratch, timeout_s
        self._name = f"kernel{toolchain.suffix}"
        self._folders = header_folders(toolchain.compiler, toolchain.suffix, toolchain.commands)
        self._words = Words(
            source=candidate.source, suffix=toolchain.suffix, scratch=scratch, folders=self._folders
        )  # fmt: skip

    def run(self, text: str) -> str | BuildFailure:
        """The log of a build that leaves `kernel.so` in the scratch, or why there is none.

        Args:
            text: the translation unit.
        """
        if embeds_files(self._candidate.source):
            return self._refused("uses #embed: a kernel is one text; paste what it needs")
        unit = f"unit{self._chain.suffix}"
        (self._scratch / unit).write_text(text)
        # Compilers quote the lines that they complain of from the file that `#line` names.
        (self._scratch / self._name).write_text(self._candidate.source + "\n")
        logs = []
        for step, (command, words) in enumerate(self._steps()):
            code, log = _run([str(self._chain.compiler), *command], self._scratch, self._timeout_s)
            if step == 0 and (refused := self._what_it_read(log)):
                return refused
            if code != 0:
                return self._failed(code, log, words(log))
            logs.append(words(log))
        for path in self._scratch.iterdir():
            if path.name not in {unit, self._name, "kernel.o", "kernel.so"}:
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        return "\n".join(log for log in logs if log)

    def _steps(self) -> Iterator[tuple[Sequence[str], Callable[[str], str]]]:
        """Commands as they are run, each with what may be kept of its output.

        A CPU's compiler stops before the assembler, so that what that gets is looked at first. nvcc cannot: it is
        looked at afterwards.
        """
        first, *rest = self._chain.commands
        trace = tracing_flags(self._chain.compiler, self._chain.suffix)
        if self._chain.suffix == ".cu":
            yield (*first, *trace), self._of_nvcc
        else:
            swap = {"-c": "-S", "kernel.o": "kernel.s"}
            yield (*trace, *(swap.get(flag, flag) for flag in first)), self._words.of_compiler
            yield ("-c", "kernel.s", "-o", "kernel.o"), self._words.of_assembler_or_nothing
        for command in rest:
            yield command, self._words.of_linker

    def _of_nvcc(self, log: str) -> str:
        words = self._words
        if "Assembler messages:" in log:
            return words.of_assembler(log)
        return "\n".join(part for part in (words.of_compiler(log), words.of_linker(log)) if part)

    def _what_it_read(self, log: str) -> BuildFailure | None:
        """Why a build is refused for what the compiler read, however it ended."""
        names = (*traced_files(log), *dependency_files(self._scratch / "unit.d", self._name))
        if outside := first_outside(names, self._scratch, self._folders):
            return self._refused(
                f"includes {outside}, a file of this machine: a kernel is one text, with headers of the compiler and "
                "the system only; paste what it needs"
            )
        if makes_directives(self._scratch):
            return self._refused("has directives that are no directives before macros are expanded")
        if assembler_reads_files(self._scratch):
            return self._refused("uses directives of the assembler that read files or make text of text")
        return None

    def _refused(self, why: str) -> BuildFailure:
        return BuildFailure(reason="compile_error", detail=f"{self._name} {why}")

    def _failed(self, code: int | None, log: str, words: str) -> BuildFailure:
        if code is None:
            return BuildFailure(reason="build_timeout", detail=f"the compiler ran longer than {self._timeout_s:g} s")
        if re.search(r"[Ff]ile (size limit exceeded|too large)", log) or code == -signal.SIGXFSZ:
            return BuildFailure(reason="compile_error", detail=_TOO_LARGE.format(LARGEST_FILE >> 20))
        said = "and said nothing" + (" of the kernel's own text" if log.strip() else "")
        detail = trim_errors(words) or f"the compiler ended with status {code} {said}"
        return BuildFailure(reason=_reason(words), detail=detail)


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


def _run(command: Sequence[str], folder: Path, timeout_s: float) -> tuple[int | None, str]:
    """Exit code (None on time-out) and output. The compiler's whole process group dies with the limit."""
    with subprocess.Popen(
        command, cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, errors="replace", start_new_session=True, env=compiler_environment(folder),
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


@cache
def compiler_version(compiler: Path) -> str:
    """First line with a version of `compiler --version`; identifies the tool chain in cache keys and records."""
    result = subprocess.run([str(compiler), "--version"], capture_output=True, text=True, check=False, timeout=60)
    lines = [line.strip() for line in result.stdout.splitlines() if re.search(r"\d+\.\d+", line)]
    return lines[-1] if "nvcc" in compiler.name and lines else (lines[0] if lines else compiler.name)
