"""Memory checking of a candidate that was right on every case: the last part of the certificate. Loads torch.

On the CPU the candidate's checked form (the same source with AddressSanitizer and UBSan in it) runs in the runner that
was built with them; on CUDA the very binary that ships runs under each tool of compute-sanitizer, in a process of its
own. Either way every buffer is one allocation of exactly its size. What a tool cannot say is `MemoryUnavailable`, never
a pass and never charged to the candidate.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from kernelforge.build.backends.cpp import checked_backend, fills_locals, find_cxx, plain_backend
from kernelforge.build.types import Artifact, BuildFailure
from kernelforge.cards.types import Variant
from kernelforge.errors import EnvironmentMissing, HarnessError
from kernelforge.evaluate.types import MemoryCheck, MemoryFailed, MemoryPassed, MemoryUnavailable
from kernelforge.executors.types import Limits
from kernelforge.generate.types import Candidate
from kernelforge.runner.binary import runner_binary
from kernelforge.runner.protocol import BufferSet, RunnerDeath, RunReply
from kernelforge.runner.sanitizers import (
    ASAN,
    CUDA_TOOLS,
    UBSAN,
    asan_error,
    cuda_error,
    cuda_errors,
    find_sanitizer,
    sanitizer_command,
    trouble,
)
from kernelforge.runner.session import RunnerSession
from kernelforge.settings import Settings
from kernelforge.verify.checks.execution import History, judge_reply
from kernelforge.verify.prepare import PreparedCase
from kernelforge.verify.types import Rejected, RejectReason

logger = logging.getLogger(__name__)

LOCALS = "filled locals"
"""Locals without an initialiser are filled with a pattern: a result that depends on them is wrong then."""

HANDFUL = 4
CAP_BYTES: Mapping[str, int] = {"cpu": 8 << 20, "cuda": 1 << 20}
"""No case larger than this is taken, unless there is no smaller one: checkers slow kernels down up to a hundredfold."""
LIMITS = Limits(wall_s=60.0, memory_bytes=8 << 30)

_EVASION = re.compile(
    r"no_sanitize|__SANITIZE_\w+|__[alu]b?san_\w*|address_sanitizer|disable_sanitizer_instrumentation", re.IGNORECASE
)
"""By such names a source can be another program, or unchecked in parts, where it is instrumented."""

_INTROSPECTION = re.compile(r"__builtin_constant_p|is_constant_evaluated|__builtin_(dynamic_)?object_size")
"""Asks what the optimiser knows, which is less where the code is instrumented."""
_INCLUDE = re.compile(r"^.*(?:#|%:).*include.*$", re.MULTILINE)

_REASONS = {
    ASAN: RejectReason.OUT_OF_BOUNDS, "memcheck": RejectReason.OUT_OF_BOUNDS, UBSAN: RejectReason.UNDEFINED_BEHAVIOUR,
    LOCALS: RejectReason.UNINITIALISED, "initcheck": RejectReason.UNINITIALISED,
}  # fmt: skip


def check_memory(
    artifact: Artifact, variant: Variant, cases: Sequence[PreparedCase],
    *, device: Literal["cpu", "cuda"], threads: int, settings: Settings,
) -> MemoryCheck:  # fmt: skip
    """Check one binary on a few small ones of the cases that it has passed.

    Raises:
        HarnessError: the runner could not do its own part.
    """
    started = time.monotonic()
    chosen = small_cases(cases, cap_bytes=CAP_BYTES[device])
    result: MemoryCheck
    if device == "cpu":
        result = check_instrumented(artifact, variant, chosen, threads=threads, settings=settings)
    else:
        sanitizer = find_sanitizer(settings)
        if sanitizer is None:
            reason = "compute-sanitizer, a part of the CUDA toolkit, was not found"
            return MemoryUnavailable(reason=reason, anywhere=True)
        result = check_under_tools(
            artifact, variant, chosen, sanitizer=sanitizer, device=device, threads=threads, settings=settings
        )
    seconds = time.monotonic() - started
    logger.debug("%s: memory check of %d cases in %.2f s: %s", variant.label, len(chosen), seconds, result)
    return result


def rejection(failed: MemoryFailed) -> Rejected:
    """A failed memory check as a verdict; what racecheck and synccheck find is a race."""
    reason = _REASONS.get(failed.tool, RejectReason.NONDETERMINISTIC)
    if failed.tool == UBSAN and "out of bounds" in failed.error:
        reason = RejectReason.OUT_OF_BOUNDS
    return Rejected(reason=reason, case=failed.case, detail=f"{failed.tool}: {failed.error}")


def small_cases(cases: Sequence[PreparedCase], *, cap_bytes: int) -> tuple[PreparedCase, ...]:
    """The smallest cases of different sizes, one with an odd size, and the largest below the cap.

    A small one shows what happens in the first and only block or vector; the largest goes through the loops of many.
    """
    ordered = sorted(cases, key=lambda c: c.size_bytes)
    within = [c for c in ordered if c.size_bytes <= cap_bytes] or ordered[:1]
    by_size: dict[tuple[int, ...], PreparedCase] = {}
    for case in within:
        by_size.setdefault(case.work.dims, case)
    distinct = list(by_size.values())
    others = [c for c in within if by_size[c.work.dims] is not c]
    odd = [c for c in distinct if any(v % 2 and v > 1 for v in c.work.dims)]
    chosen = [*(*distinct, *others)[:HANDFUL], *odd[:1], within[-1]]
    return tuple({id(c): c for c in chosen}.values())


def check_instrumented(
    artifact: Artifact, variant: Variant, cases: Sequence[PreparedCase], *, threads: int, settings: Settings
) -> MemoryCheck:
    """Run the checked form of a CPU candidate on every case.

    Raises:
        HarnessError: the runner could not do its own part.
    """
    if not artifact.source:
        return MemoryUnavailable(reason="the candidate's source is not at hand")
    form = _CheckedForm(artifact=artifact, variant=variant, threads=threads, settings=settings)
    try:
        runner_binary("cpu-asan", settings)
    except (HarnessError, EnvironmentMissing) as error:
        reason = f"the runner cannot be built with {ASAN}: {_last_line(error.message)}"
        return MemoryUnavailable(reason=reason, anywhere=True)
    evasion = form.evasion()
    if evasion:
        return MemoryUnavailable(reason=evasion)
    built = form.build("pattern")
    if isinstance(built, BuildFailure):
        return MemoryUnavailable(reason=f"the checked form does not build: {_last_line(built.detail)}")
    with form.session(built) as session:
        for prepared, work in _works(cases):
            reply, sizes = _call(session, variant, work)
            where = prepared.case.description
            if isinstance(reply, RunnerDeath):
                return _asan_end(reply, sizes, where)
            if reply.error:
                return MemoryUnavailable(reason=f"{ASAN}: {reply.error}: {reply.message}")
            judged = judge_reply(variant, prepared, reply, History())
            if isinstance(judged, Rejected) and form.depends_on_locals(work, reply):
                words = f"the result depends on a local variable that was not initialised: {judged.detail}"
                return MemoryFailed(tool=LOCALS, error=words, case=where)
    filled = (LOCALS,) if fills_locals(find_cxx(settings)) else ()
    return MemoryPassed(tools=(ASAN, UBSAN, *filled))


def build_ahead(artifact: Artifact, variant: Variant, *, settings: Settings) -> None:
    """Build the checked form of a CPU candidate into the cache, where its check will find it. Thread-safe.

    Whether it builds is the check's business.

    Raises:
        EnvironmentMissing: no compiler.
    """
    _CheckedForm(artifact=artifact, variant=variant, threads=1, settings=settings).build("pattern")


@dataclass(frozen=True, slots=True, kw_only=True)
class _CheckedForm:
    """The instrumented builds of one CPU candidate."""

    artifact: Artifact
    variant: Variant
    threads: int
    settings: Settings

    @property
    def candidate(self) -> Candidate:
        return Candidate(
            variant_id=self.variant.id, source=self.artifact.source, backend="cpp", generator="checked form"
        )  # fmt: skip

    def evasion(self) -> str:
        """How the source escapes the check, or "": it names what turns it off, or is another text where it is on.

        Told of what the preprocessor leaves: names may be pasted together.
        """
        backend = plain_backend(self.settings, self.artifact.target)
        # The standard's headers may ask the optimiser, the source may not.
        includes = replace(self.candidate, source="\n".join(_INCLUDE.findall(self.artifact.source)))
        plain, headers = (backend.preprocess(c, self.variant) for c in (self.candidate, includes))
        checked = checked_backend(self.settings, self.artifact.target).preprocess(self.candidate, self.variant)
        if plain is None or headers is None or checked is None:
            return "the source cannot be preprocessed on its own"
        named = _EVASION.search(self.artifact.source) or _EVASION.search(plain)
        if named:
            return f"the source names the sanitizers: {named[0]}"
        if len(_INTROSPECTION.findall(plain)) > len(_INTROSPECTION.findall(headers)):
            return "the source asks what the optimiser knows, and may be another program where it is checked"
        return "" if plain == checked else "the source is another text where it is checked"

    def build(self, locals_as: Literal["pattern", "zero"]) -> Artifact | BuildFailure:
        backend = checked_backend(self.settings, self.artifact.target, locals_as=locals_as)
        built = backend.build(self.candidate, self.variant)
        if isinstance(built, Artifact):
            logger.debug("%s: checked form built in %.2f s", self.variant.label, built.seconds)
        return built

    def session(self, built: Artifact) -> RunnerSession:
        return RunnerSession(
            built.path, device="cpu", limits=LIMITS, threads=self.threads, settings=self.settings, sanitize=True
        )  # fmt: skip

    def depends_on_locals(self, work: BufferSet, reply: RunReply) -> bool:
        """Whether other contents of uninitialised locals give another result than this reply's.

        Without that, a result that is wrong here and was right at -O3 differs in its rounding only.
        """
        built = self.build("zero")
        if isinstance(built, BuildFailure):
            return False
        with self.session(built) as session:
            other, _ = _call(session, self.variant, work)
        return isinstance(other, RunReply) and not other.error and other.outputs != reply.outputs


def check_under_tools(
    artifact: Artifact, variant: Variant, cases: Sequence[PreparedCase],
    *, sanitizer: Path, device: Literal["cpu", "cuda"], threads: int, settings: Settings,
) -> MemoryCheck:  # fmt: skip
    """Run a binary under each tool of compute-sanitizer on every case; of several errors the first tool's counts.

    The tools run beside each other: most of the time each starts up, and nothing is timed.

    Raises:
        EnvironmentMissing: the runner cannot be built.
    """
    if device == "cuda":
        runner_binary("cuda", settings)  # built once, not by whoever comes first

    def check(tool: str) -> MemoryFailed | MemoryUnavailable | None:
        started = time.monotonic()
        with RunnerSession(
            artifact.path, device=device, limits=LIMITS, threads=threads, settings=settings,
            wrapper=sanitizer_command(sanitizer, tool), exact=True,
        ) as session:  # fmt: skip
            result = _under_tool(session, tool, variant, cases)
        logger.debug("%s: %s in %.2f s: %s", variant.label, tool, time.monotonic() - started, result)
        return result

    with ThreadPoolExecutor(len(CUDA_TOOLS), thread_name_prefix="kforge-memory") as pool:
        results = list(pool.map(check, CUDA_TOOLS))
    failed = next((r for r in results if isinstance(r, MemoryFailed)), None)
    unavailable = next((r for r in results if r is not None), None)
    return failed or unavailable or MemoryPassed(tools=CUDA_TOOLS)


def _under_tool(
    session: RunnerSession, tool: str, variant: Variant, cases: Sequence[PreparedCase]
) -> MemoryFailed | MemoryUnavailable | None:
    """None if the tool came to its end on every case and found nothing."""
    sizes: Mapping[str, int] = {}
    where, stopped = "loading the binary", ""
    for prepared, work in _works(cases):
        where = prepared.case.description
        reply, sizes = _call(session, variant, work)
        if isinstance(reply, RunnerDeath):
            stopped = reply.detail
        elif reply.error:
            stopped = f"{reply.error}: {reply.message}"
        if stopped or cuda_error(session.output(), sizes):
            break
    end = session.finish()
    found, count = cuda_error(end.output, sizes), cuda_errors(end.output)
    if found or count:
        return MemoryFailed(tool=tool, error=found or f"{count} errors of a kind unknown here", case=where)
    if stopped or count is None or "exited with status 0 " not in end.detail:
        return MemoryUnavailable(reason=f"{tool}: {trouble(end.output, stopped or end.detail)}")
    return None


def _works(cases: Sequence[PreparedCase]) -> Iterator[tuple[PreparedCase, BufferSet]]:
    """Each case twice: first each buffer an allocation of its own, to the byte at both ends; then its pointers no
    better aligned than the guard demands, which costs a few bytes in front of each buffer."""
    for prepared in cases:
        exact = tuple(replace(b, alignment=max(b.alignment, 64)) for b in prepared.work.buffers)
        yield prepared, replace(prepared.work, buffers=exact)
        if exact != prepared.work.buffers:
            yield prepared, prepared.work


def _call(
    session: RunnerSession, variant: Variant, work: BufferSet
) -> tuple[RunReply | RunnerDeath, Mapping[str, int]]:
    """One call, and the sizes of its buffers by name."""
    names = (*variant.tensor_names(), *(variant.output_names() if variant.outputs else ()))
    sizes = {name: buffer.size_bytes for name, buffer in zip(names, work.buffers, strict=True)}
    loaded = session.load(0, work)
    if isinstance(loaded, RunnerDeath):
        return loaded, sizes
    if loaded.error:
        return RunReply(outputs=(), error=loaded.error, message=loaded.message), sizes
    if loaded.workspace_bytes > 0:
        sizes["workspace"] = loaded.workspace_bytes
    return session.run_slot(0), sizes


def _asan_end(end: RunnerDeath, sizes: Mapping[str, int], where: str) -> MemoryFailed | MemoryUnavailable:
    found = asan_error(end.output, sizes)
    if found is None:
        return MemoryUnavailable(reason=f"{ASAN}: {trouble(end.output, end.detail)}")
    tool, error = found
    return MemoryFailed(tool=tool, error=error, case=where)


def _last_line(text: str) -> str:
    return text.strip().splitlines()[-1] if text.strip() else "no message"
