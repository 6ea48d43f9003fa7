"""The judge's side of the runner: one session is one process with one candidate's binary.

API:
    RunnerSession(artifact_path, *, device, limits, threads, settings, sanitize=False, wrapper=(), exact=False)
        context manager; the process starts on entering. `.pid`, `.death`, `.start_s`.
    .load(slot, BufferSet) -> LoadReply | RunnerDeath          slot in [0, 256); data is sent once
    .run_slot(slot) -> RunReply | RunnerDeath                  inputs restored, outputs poisoned, everything checked
    .time_slots(first, count, *, iterations, warmup=1, flush_bytes=0, batch=False, collect=False)
                                 -> TimeReply | RunnerDeath    iteration i runs on slot first + i % count
    .unload(slot) -> None
    .finish() -> RunnerDeath                                   let it end by itself, so that a checker can report
    .run(buffers, dims, scalars) -> RunReply | RunnerDeath     load, run_slot, unload
    .time(sets, *, iterations, ...) -> TimeReply | RunnerDeath load all, time_slots, unload

Timing: `flush_bytes` > 0 walks that much other memory before every timed call, outside its window ("cold"); 0 does not
("warm"; rotating over sets that exceed the last-level cache is the other way to be cold). On the CPU the flush is
followed by an untimed call on the next set, so that data are cold and code is warm: give it at least two sets. Inout
buffers are put back before every call, outside its window. `batch` makes the calls back to back without a clock in
between, nothing flushed or put back: its total is what the session's own wall clock (`wall_s`) can bound.
"""

from __future__ import annotations

import logging
import os
import secrets
import stat
import time
from collections.abc import Container, Iterator, Sequence
from pathlib import Path
from typing import Literal, Self

from kernelforge.errors import HarnessError
from kernelforge.executors.kinds.process import ProcessWorker, bare_environment, fresh_uid
from kernelforge.executors.types import Limits
from kernelforge.runner import arena, protocol
from kernelforge.runner.binary import Flavour, runner_binary
from kernelforge.runner.protocol import (
    Buffer,
    BufferSet,
    Fence,
    LoadReply,
    RawReply,
    RunnerDeath,
    RunReply,
    TimeReply,
)
from kernelforge.runner.slots import SlotSession
from kernelforge.settings import Settings

logger = logging.getLogger(__name__)

START_WALL_S = 60.0
"""How long loading the binary may take; a CUDA context takes a second at most, its constructors nothing."""

FINISH_WALL_S = 60.0
"""How long a checker around the runner may take for its report."""


class RunnerSession(SlotSession):
    """One candidate in a process of its own. Not thread-safe.

    Args:
        artifact_path: the candidate's shared object; it exports kforge_invoke.
        limits: `memory_bytes` is what the candidate may use beyond the buffers that are loaded.
        threads: OpenMP threads of the candidate.
        sanitize: use the runner built with ASan and UBSan (CPU); implies `exact`.
        wrapper: a command to run the runner under, for example ("compute-sanitizer", "--error-exitcode", "9").
        exact: every buffer is an allocation of exactly its size without canaries, for memory checkers.
    """

    in_torch = False

    def __init__(
        self, artifact_path: Path, *, device: Literal["cpu", "cuda"], limits: Limits, threads: int,
        settings: Settings, sanitize: bool = False, wrapper: Sequence[str] = (), exact: bool = False,
    ) -> None:  # fmt: skip
        super().__init__()
        self._artifact, self._device, self._limits, self._threads = artifact_path, device, limits, threads
        self._settings, self._sanitize, self._wrapper = settings, sanitize, tuple(wrapper)
        self._exact = exact or sanitize
        self._scratch_bytes = 0
        self.fences: frozenset[Fence] = frozenset()
        """What this machine offers of what keeps the process from everything else."""
        self.start_s = 0.0
        """Wall time from spawning to the answer that the binary is loaded, seconds."""

    def __enter__(self) -> Self:
        """Start the process and load the binary. A binary that does not load is the `death` of every command.

        Raises:
            EnvironmentMissing: no compiler for the runner.
            HarnessError: the artifact cannot be read.
        """
        flavour: Flavour = "cuda" if self._device == "cuda" else "cpu-asan" if self._sanitize else "cpu"
        binary = runner_binary(flavour, self._settings)
        try:
            fd = os.open(self._artifact, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise HarnessError(f"cannot read the binary {self._artifact}: {error}") from error
        try:
            trouble = ""
            for uid, fence in self._fencing(fd):
                if trouble:
                    # The device may be root's alone, say. A weaker fence is better than no verdict.
                    logger.info("the runner cannot use %s behind its whole fence: %s", self._device, trouble)
                trouble = self._start(binary, fd, uid, fence=fence)
                if not trouble:
                    break
        finally:
            os.close(fd)
        if trouble:
            raise HarnessError(f"the runner could not start on {self._device}: {trouble}")
        return self

    def output(self) -> str:
        """The last bytes of the candidate's stdout and stderr so far."""
        return self._live.output()

    def finish(self, *, wall_s: float = FINISH_WALL_S) -> RunnerDeath:
        """Let the process end by itself, so that a checker around it can write its report; how it ended.

        The death's detail names the exit status, which is the wrapper's if there is one.
        """
        nonce = secrets.randbits(64)
        end = self._live.request(protocol.pack_command(protocol.QUIT, nonce=nonce), wall_s=wall_s)
        return end if isinstance(end, RunnerDeath) else self._live.die("protocol", "a reply to QUIT")

    def load(self, slot: int, work: BufferSet) -> LoadReply | RunnerDeath:
        """Send a set of buffers; what was in the slot before is freed.

        Raises:
            HarnessError: the buffers contradict themselves.
        """
        if not 0 <= slot < protocol.MAX_SLOTS:
            raise HarnessError(f"slot {slot}: the runner has {protocol.MAX_SLOTS}")
        self._forget(slot)
        layout = protocol.layout_of(work.buffers)
        nonce = secrets.randbits(64)
        message = protocol.pack_load(slot, work, layout, exact=self._exact, nonce=nonce)
        # Twice: the arenas are resident in the runner as well once it has touched them.
        granted = 2 * (layout.in_bytes + layout.out_bytes) + (64 << 10) * len(work.buffers)
        in_fd = arena.input_arena(work.buffers, layout)
        out_fd = arena.blank_arena(layout.out_bytes)
        self._slots[slot] = (layout, out_fd, granted)
        self._live.grant(granted)
        try:
            raw = self._ask(protocol.LOAD, message, nonce, fds=(in_fd, out_fd), buffers=len(work.buffers))
        finally:
            os.close(in_fd)
        if isinstance(raw, RunnerDeath):
            return raw
        return LoadReply(error=raw.error, message=raw.message, workspace_bytes=raw.workspace_bytes)

    def unload(self, slot: int) -> None:
        """Free a slot."""
        self._forget(slot)
        nonce = secrets.randbits(64)
        self._ask(protocol.UNLOAD, protocol.pack_command(protocol.UNLOAD, nonce=nonce, slot=slot), nonce)

    def run_slot(self, slot: int) -> RunReply | RunnerDeath:
        """Call the candidate once on a loaded slot: inputs as given, outputs and workspace poisoned.

        Raises:
            HarnessError: nothing is loaded there.
        """
        if self._live.death is not None:
            return self._live.death
        layout, out_fd, _ = self._slot(slot)
        nonce = secrets.randbits(64)
        message = protocol.pack_command(protocol.RUN, nonce=nonce, slot=slot)
        started = time.monotonic()
        raw = self._ask(protocol.RUN, message, nonce, buffers=len(layout.sizes))
        wall_s = time.monotonic() - started
        if isinstance(raw, RunnerDeath):
            return raw
        return RunReply(
            outputs=() if raw.error else arena.read_outputs(out_fd, layout),
            error=raw.error, status=raw.status, message=raw.message, inputs_changed=raw.changed,
            canaries_broken=raw.broken, seconds=raw.total_ns / 1e9, wall_s=wall_s,
        )  # fmt: skip

    def time_slots(
        self, first: int, count: int, *, iterations: int, warmup: int = 1, flush_bytes: int = 0,
        batch: bool = False, collect: bool = False, prepare: bool = True,
        read: Container[int] | None = None, core: int | None = None,
    ) -> TimeReply | RunnerDeath:  # fmt: skip
        """Call the candidate `iterations` times, the i-th on slot first + i % count; see the module's docstring.

        Args:
            warmup: untimed calls before.
            collect: poison the outputs before, and afterwards return them and check inputs and canaries.
            prepare: False leaves out what collecting does before: the slots stay as the calls before left them.
            read: positions of the sets whose outputs are wanted, all by default; the runner is not told which.
            core: where the calling thread begins, on the CPU; it may leave it.

        Raises:
            HarnessError: a slot is empty, or iterations < 1.
        """
        if self._live.death is not None:
            return self._live.death
        layouts = [self._slot(slot) for slot in range(first, first + count)]
        protocol.check_timing(count, iterations)
        flags = (protocol.FLAG_BATCH if batch else 0) | (protocol.FLAG_COLLECT if collect else 0)
        flags |= protocol.FLAG_PREPARE if collect and prepare else 0
        nonce = secrets.randbits(64)
        message = protocol.pack_command(
            protocol.TIME, nonce=nonce, slot=first, count=count, flags=flags, iterations=iterations, warmup=warmup,
            flush_bytes=flush_bytes, core=core,
        )  # fmt: skip
        samples_fd = arena.blank_arena(8 * iterations)
        self._grant_scratch(flush_bytes)
        try:
            started = time.monotonic()
            raw = self._ask(protocol.TIME, message, nonce, fds=(samples_fd,), buffers=len(layouts[0][0].sizes))
            wall_s = time.monotonic() - started
            if isinstance(raw, RunnerDeath):
                return raw
            samples = () if batch or raw.error else arena.read_samples(samples_fd, iterations)
        finally:
            os.close(samples_fd)
        outputs: tuple[tuple[bytearray, ...], ...] = ()
        if collect and not raw.error:
            wanted = range(count) if read is None else read
            outputs = tuple(
                arena.read_outputs(fd, layout) if position in wanted else ()
                for position, (layout, fd, _) in enumerate(layouts)
            )
        return TimeReply(
            samples_ns=samples, total_ns=raw.total_ns, wall_s=wall_s,
            error=raw.error, status=raw.status, message=raw.message, failed_at=raw.failed_at,
            outputs=outputs,
            inputs_changed=raw.changed, canaries_broken=raw.broken,
        )  # fmt: skip

    def run(
        self, buffers: Sequence[Buffer], dims: Sequence[int] = (), scalars: Sequence[float] = ()
    ) -> RunReply | RunnerDeath:
        """Load a set into slot 0, call the candidate once, unload."""
        loaded = self.load(0, BufferSet(buffers=tuple(buffers), dims=tuple(dims), scalars=tuple(scalars)))
        if isinstance(loaded, RunnerDeath):
            return loaded
        if loaded.error:
            return RunReply(outputs=(), error=loaded.error, message=loaded.message)
        reply = self.run_slot(0)
        self.unload(0)
        return reply

    def time(
        self, sets: Sequence[BufferSet], *, iterations: int, warmup: int = 1, flush_bytes: int = 0,
        batch: bool = False, collect: bool = False,
    ) -> TimeReply | RunnerDeath:  # fmt: skip
        """Load sets into slots 0, 1 ..., time over them in turn, unload."""
        for slot, work in enumerate(sets):
            loaded = self.load(slot, work)
            if isinstance(loaded, RunnerDeath):
                return loaded
            if loaded.error:
                return TimeReply(samples_ns=(), total_ns=0, wall_s=0.0, error=loaded.error, message=loaded.message)
        reply = self.time_slots(
            0, len(sets), iterations=iterations, warmup=warmup, flush_bytes=flush_bytes, batch=batch, collect=collect
        )
        for slot in range(len(sets)):
            self.unload(slot)
        return reply

    def _grant_scratch(self, flush_bytes: int) -> None:
        if flush_bytes > self._scratch_bytes:
            self._live.grant(flush_bytes - self._scratch_bytes)
            self._scratch_bytes = flush_bytes

    def _environment(self) -> dict[str, str]:
        base = bare_environment() | {"OMP_NUM_THREADS": str(self._threads)}
        if self._sanitize:
            base["ASAN_OPTIONS"] = "abort_on_error=1:detect_leaks=0:handle_segv=1"
            base["UBSAN_OPTIONS"] = "halt_on_error=1:print_stacktrace=1"
        return base

    def _fencing(self, artifact_fd: int) -> Iterator[tuple[int, bool]]:
        """User ids (0: none of its own) and whether to fence network and files off, the best first."""
        if self._wrapper:
            yield 0, False  # a checker around the runner has files and sockets of its own
            return
        # Under another user the binary is opened again through /proc, which asks for its own permission bits.
        uid = fresh_uid() if os.fstat(artifact_fd).st_mode & stat.S_IROTH else 0
        yield uid, True
        yield uid, False
        if uid:
            yield 0, False

    def _start(self, binary: Path, artifact_fd: int, uid: int, *, fence: bool) -> str:
        """Spawn and await the first reply; what is wrong with the machine, or "". A death is kept as `death`."""
        started = time.monotonic()
        argv = [*self._wrapper, str(binary), "--artifact", str(artifact_fd), "--threads", str(self._threads)]
        worker = self._worker = ProcessWorker(
            [*argv, "--fence", str(int(fence)), "--uid", str(uid)],
            limits=self._limits,
            env=self._environment(),
            fds=(artifact_fd,),
            uid=uid,
        )
        raw = self._ask(protocol.READY, b"", 0, wall_s=max(START_WALL_S, self._limits.wall_s))
        self.start_s = time.monotonic() - started
        if isinstance(raw, RunnerDeath):
            return ""
        self.fences = raw.fences
        if not raw.error:
            return ""
        if raw.error == "load":
            worker.die("load", raw.message)
            return ""
        worker.close()
        return raw.message

    def _ask(
        self,
        op: int,
        message: bytes,
        nonce: int,
        *,
        fds: Sequence[int] = (),
        buffers: int = 0,
        wall_s: float | None = None,
    ) -> RawReply | RunnerDeath:
        data = self._live.request(message, fds=fds, wall_s=wall_s)
        if isinstance(data, RunnerDeath):
            return data
        raw = protocol.unpack_reply(data, op=op, nonce=nonce, buffers=buffers)
        if isinstance(raw, str):
            return self._live.die("protocol", raw)
        if raw.error == "request":
            return self._live.die("protocol", f"the runner refused a command: {raw.message}")
        if raw.dying:
            if self._wrapper:
                # It has left by itself; the checker around it still has its report to write.
                self._live.request(b"", wall_s=FINISH_WALL_S)
            self._live.die("crash", f"the device context was destroyed: {raw.message}")
        return raw
