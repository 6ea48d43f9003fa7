"""The judge's side of a candidate of the torch ABI: one session is one process with torch and the candidate in it.

It speaks like `session.RunnerSession`, so that verifying and timing need not know which they have. What comes from the
process is a JSON packet that is checked field by field, and raw bytes through memfds; nothing is unpickled. A process
with torch in it can compute anything: this is the weaker tier, and what passes here is not exported.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
import sys
import time
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, Self, cast, get_args

from kernelforge.cards.types import Variant
from kernelforge.digest import Json
from kernelforge.errors import HarnessError
from kernelforge.executors.kinds.process import ProcessWorker, bare_environment
from kernelforge.executors.types import Limits
from kernelforge.runner import arena, protocol
from kernelforge.runner.eager import START_WALL_S, load_request
from kernelforge.runner.protocol import BufferSet, LoadReply, ReplyError, RunnerDeath, RunReply, TimeReply
from kernelforge.runner.slots import SlotSession

logger = logging.getLogger(__name__)

TORCH_BYTES = 8 << 30
"""What torch itself may take on top of the candidate's limit: its libraries for CUDA are gigabytes."""
COPIES = 6
"""How often a set may be in the process's memory: arenas, tensors, originals, and results of several calls."""
_LARGEST = 1 << 63


class TorchSession(SlotSession):
    """One candidate of the torch ABI in a process of its own. Not thread-safe.

    Args:
        artifact_path: the built Python module.
        call: argument of the variant and kind for each parameter of its `launch`, in order.
        limits: `memory_bytes` is what the candidate may use beyond torch and the buffers that are loaded.
        threads: torch's intra-op threads, and OpenMP's.
    """

    in_torch = True

    def __init__(
        self, artifact_path: Path, variant: Variant, call: Sequence[tuple[str, str]], *,
        device: Literal["cpu", "cuda"], limits: Limits, threads: int,
    ) -> None:  # fmt: skip
        super().__init__()
        self._artifact, self._variant, self._call = artifact_path, variant, tuple(call)
        self._device, self._threads = device, threads
        self._limits = replace(limits, memory_bytes=limits.memory_bytes + TORCH_BYTES)

    def __enter__(self) -> Self:
        """Start the process and load the module. One that does not load is the `death` of every command.

        Raises:
            HarnessError: torch does not start.
        """
        trouble = self._start(fence=True)
        if trouble:
            logger.info("torch cannot use %s behind the fence: %s", self._device, trouble)
            trouble = self._start(fence=False)
        if trouble:
            raise HarnessError(f"a process with torch could not start on {self._device}: {trouble}")
        return self

    def load(self, slot: int, work: BufferSet) -> LoadReply | RunnerDeath:
        """Send a set of buffers; what was in the slot before is freed."""
        self._forget(slot)
        layout = protocol.layout_of(work.buffers)
        dims = {d.name: v for d, v in zip(self._variant.dims, work.dims, strict=True)}
        scalars = {s.name: v for s, v in zip(self._variant.scalars, work.scalars, strict=True)}
        request = load_request(slot, self._variant.to_json(), dims, scalars, work.buffers, layout=layout)
        granted = COPIES * (layout.in_bytes + layout.out_bytes) + (64 << 10) * len(work.buffers)
        in_fd, out_fd = arena.input_arena(work.buffers, layout), arena.blank_arena(layout.out_bytes)
        self._slots[slot] = (layout, out_fd, granted)
        self._live.grant(granted)
        try:
            answer = self._ask(request, fds=(in_fd, out_fd))
        finally:
            os.close(in_fd)
        if isinstance(answer, RunnerDeath):
            return answer
        return LoadReply(error=answer.error, message=answer.message, workspace_bytes=0)

    def unload(self, slot: int) -> None:
        """Free a slot."""
        self._forget(slot)
        self._ask({"op": "unload", "slot": slot})

    def run_slot(self, slot: int) -> RunReply | RunnerDeath:
        """Call the candidate once on a loaded slot, inputs as given.

        Raises:
            HarnessError: nothing is loaded there.
        """
        if self._live.death is not None:
            return self._live.death
        layout, out_fd, _ = self._slot(slot)
        started = time.monotonic()
        answer = self._ask({"op": "run", "slot": slot})
        wall_s = time.monotonic() - started
        if isinstance(answer, RunnerDeath):
            return answer
        return RunReply(
            outputs=() if answer.error else arena.read_outputs(out_fd, layout), error=answer.error,
            message=answer.message, inputs_changed=answer.changed, seconds=answer.total_ns / 1e9, wall_s=wall_s,
        )  # fmt: skip

    def time_slots(
        self, first: int, count: int, *, iterations: int, warmup: int = 1, flush_bytes: int = 0, batch: bool = False,
        collect: bool = False, prepare: bool = True,  # noqa: ARG002 - `launch` makes its own outputs
        read: Container[int] | None = None, core: int | None = None,
    ) -> TimeReply | RunnerDeath:  # fmt: skip
        """As `RunnerSession.time_slots`; outputs are `launch`'s own, so that none can be poisoned before a call.

        Raises:
            HarnessError: a slot is empty, or iterations < 1.
        """
        if self._live.death is not None:
            return self._live.death
        loaded = [self._slot(slot) for slot in range(first, first + count)]
        protocol.check_timing(count, iterations)
        request: dict[str, Json] = {
            "op": "time", "slot": first, "count": count, "iterations": iterations, "warmup": warmup,
            "flush_bytes": flush_bytes, "batch": batch, "core": core, "collect": collect,
        }  # fmt: skip
        samples_fd = arena.blank_arena(8 * iterations)
        try:
            started = time.monotonic()
            answer = self._ask(request, fds=(samples_fd,))
            wall_s = time.monotonic() - started
            if isinstance(answer, RunnerDeath):
                return answer
            samples = () if batch or answer.error else arena.read_samples(samples_fd, iterations)
        finally:
            os.close(samples_fd)
        wanted = range(count) if read is None else read
        outputs = tuple(
            arena.read_outputs(fd, layout) if position in wanted else ()
            for position, (layout, fd, _) in enumerate(loaded if collect and not answer.error else ())
        )
        return TimeReply(
            samples_ns=samples, total_ns=answer.total_ns, wall_s=wall_s, error=answer.error, message=answer.message,
            outputs=outputs, inputs_changed=answer.changed,
        )  # fmt: skip

    def _start(self, *, fence: bool) -> str:
        """Spawn and await the first answer; what is wrong with the machine, or "". A candidate's fault is its death."""
        # -P: nothing is imported from where we happen to be.
        argv = [sys.executable, "-P", "-m", f"{__package__}.torch_main", "--device", self._device]
        argv += ["--threads", str(self._threads), "--binary", str(self._artifact.resolve())]
        argv += ["--call", json.dumps(self._call), *(["--fence"] if fence else [])]
        environment = bare_environment() | {
            "OMP_NUM_THREADS": str(self._threads), "PYTHONPATH": os.pathsep.join(p for p in sys.path if p),
        }  # fmt: skip
        self._worker = ProcessWorker(argv, limits=self._limits, env=environment)
        ready = self._await(self._worker.request(b"", wall_s=START_WALL_S), "")
        if isinstance(ready, RunnerDeath):
            return f"{ready.detail}; {ready.output.strip()[-300:]}"
        if ready.error:
            self._worker.close()
            return ready.message
        # Torch is there. From here on it is the candidate's doing.
        loaded = self._await(self._worker.request(b"", wall_s=START_WALL_S), "")
        if not isinstance(loaded, RunnerDeath) and loaded.error:
            self._worker.die("load", loaded.message)
        return ""

    def _ask(self, request: Mapping[str, Json], *, fds: Sequence[int] = ()) -> _Answer | RunnerDeath:
        nonce = secrets.token_hex(8)
        message = json.dumps({**request, "nonce": nonce}).encode()
        return self._await(self._live.request(message, fds=fds), nonce)

    def _await(self, data: bytes | RunnerDeath, nonce: str) -> _Answer | RunnerDeath:
        if isinstance(data, RunnerDeath):
            return data
        answer = _read_answer(data, nonce=nonce, inputs=len(self._variant.tensors))
        return self._live.die("protocol", answer) if isinstance(answer, str) else answer


@dataclass(frozen=True, slots=True, kw_only=True)
class _Answer:
    """An answer, validated. changed: indices of read-only inputs that the call wrote to."""

    error: ReplyError
    message: str
    total_ns: int
    changed: tuple[int, ...]


def _read_answer(data: bytes, *, nonce: str, inputs: int) -> _Answer | str:
    """Validate an answer; a string says what is wrong with it."""
    try:
        answer = json.loads(data)
    except (ValueError, RecursionError):
        return "an answer that is no JSON"
    if not isinstance(answer, dict) or answer.get("nonce") != nonce:
        return "an answer that is not one to the request"
    error, message, total = answer.get("error"), answer.get("message"), answer.get("total_ns")
    changed = answer.get("changed")
    if not isinstance(error, str) or error not in get_args(ReplyError) or not isinstance(message, str):
        return "an answer without an error that is known"
    if type(total) is not int or not 0 <= total < _LARGEST:
        return "an answer with a time that is none"
    if not isinstance(changed, list) or not all(type(i) is int and 0 <= i < inputs for i in changed):
        return "an answer about inputs that do not exist"
    # Half of a surrogate pair can be written in JSON, and not be stored.
    words = message[:2000].encode(errors="replace").decode()
    return _Answer(error=cast(ReplyError, error), message=words, total_ns=total, changed=tuple(changed))
