"""What the runner and the eager worker take and give, and the structs on the wire. Imports no torch.

API (both `session.RunnerSession` and `eager.EagerWorker` speak it):
    Buffer(kind="input"|"inout"|"output", data=bytes-like or None, size_bytes=N, alignment=64)
        alignment: the pointer is divisible by it and, below 64, by no greater power of two. 64 is what torch's
        allocator gives, so use 64 for timing, and the pattern's own alignment (16, 8, 4 ...) to try a guard.
    LoadReply(error, message, workspace_bytes)
    RunReply(outputs, error, status, message, inputs_changed, canaries_broken, seconds, wall_s)
    TimeReply(samples_ns, total_ns, wall_s, error, status, message, failed_at, inputs_changed, canaries_broken)
    RunnerDeath(kind="crash"|"timeout"|"oom"|"protocol"|"load", detail, output)

The layout of the structs is that of kforge_runner.c. Each command carries a secret number that its reply repeats, so
that code in the runner cannot answer a command that it has not been sent yet. A reply comes from a process that ran
candidate code: it is unpacked field by field and validated, and a nonsensical one is a `protocol` death.
"""

from __future__ import annotations

import struct
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias

from kernelforge.errors import HarnessError
from kernelforge.executors.types import Death

RunnerDeath: TypeAlias = Death

TORCH_MODULE = "kforge_kernel"
"""The Python module that a binary of the torch ABI is."""

MAX_BUFFERS, MAX_DIMS, MAX_SCALARS, MAX_SLOTS = 128, 32, 32, 256
WORKSPACE = -1
"""The workspace's index in `canaries_broken`."""

Fence: TypeAlias = Literal["user", "network", "files"]
"""A user id of its own, no network, no file that can be written to."""
ReplyError: TypeAlias = Literal["", "memory", "workspace", "device", "launch", "async", "load", "request", "meta"]
Bytes: TypeAlias = "bytes | bytearray | memoryview"

_MAGIC, _VERSION = 0x4B464F52, 1
READY, LOAD, RUN, TIME, UNLOAD, QUIT = range(1, 7)
FLAG_EXACT, FLAG_BATCH, FLAG_COLLECT, FLAG_PREPARE = 1, 2, 4, 8
_DYING, _HAS_WORKSPACE, _HAS_FFI = 1, 2, 4
_FENCES: Mapping[Fence, int] = {"user": 8, "network": 16, "files": 32}
_KINDS = {"input": 0, "inout": 1, "output": 2}
_ERRORS: tuple[ReplyError, ...] = ("", "request", "memory", "workspace", "device", "launch", "async", "load")

_HEAD = struct.Struct("<4I4I2I6Q")
_BUFFER = struct.Struct("<2I4Q")
_REPLY = struct.Struct("<5IiqqQQ24s24s512s")


@dataclass(frozen=True, slots=True, kw_only=True)
class Buffer:
    """One tensor of a call as raw bytes, in the order of the ABI.

    Attributes:
        kind: "inout" is an input that the call may change; its bytes come back like an output's.
        data: size_bytes bytes for "input" and "inout"; None for "output".
        alignment: see the module's docstring; a power of two up to 4096.
    """

    kind: Literal["input", "inout", "output"]
    data: Bytes | None
    size_bytes: int
    alignment: int = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadReply:
    """A set of buffers is in place, or not.

    Attributes:
        error: "" or "memory" (ours), "workspace" (the candidate's size makes no sense or is too large), "device".
        workspace_bytes: what kforge_workspace returned.
    """

    error: ReplyError
    message: str
    workspace_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RunReply:
    """One call was made.

    Attributes:
        outputs: raw bytes of each "inout" and "output" buffer in order; empty if error.
        error: "" or "launch" (it returned status != 0), "async" (the device failed afterwards), "workspace", "memory",
            "device", "meta" (torch ABI: it returned tensors of another form than the variant's). status: what launch
            returned, or the cudaError_t. message: the same in words.
        inputs_changed: indices of "input" buffers that the call changed.
        canaries_broken: indices of buffers whose surroundings it wrote to; -1 is the workspace.
        seconds: of the call as the worker saw it, device work included. wall_s: of the command by our own clock.
    """

    outputs: tuple[bytearray, ...]
    error: ReplyError = ""
    status: int = 0
    message: str = ""
    inputs_changed: tuple[int, ...] = ()
    canaries_broken: tuple[int, ...] = ()
    seconds: float = 0.0
    wall_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeReply:
    """Many calls were made.

    Attributes:
        samples_ns: per call, nanoseconds (device time between two events on CUDA, CLOCK_MONOTONIC on the CPU); empty
            for a batch.
        total_ns: sum of the samples; for a batch, first call to the end of the last, back to back.
        wall_s: of the whole command by our own clock: an upper bound on total_ns that no candidate can touch.
        outputs: with collect, per set the bytes of its outputs after its last call, as in RunReply; () for sets that
            were not to be read.
        inputs_changed, canaries_broken: with collect, over all sets.
        core: where eager's calls ended, on the CPU.
    """

    samples_ns: tuple[int, ...]
    total_ns: int
    wall_s: float
    error: ReplyError = ""
    status: int = 0
    message: str = ""
    failed_at: int = -1
    outputs: tuple[tuple[bytearray, ...], ...] = ()
    inputs_changed: tuple[int, ...] = ()
    canaries_broken: tuple[int, ...] = ()
    core: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BufferSet:
    """The buffers of one call, with the values of the variant's dims and scalars in order."""

    buffers: tuple[Buffer, ...]
    dims: tuple[int, ...] = ()
    scalars: tuple[float, ...] = ()


class Session(Protocol):
    """One candidate in a process of its own: what verifying and timing ask of it. A dead one answers with its death.

    Attributes:
        in_torch: the process has torch in it, and its calls go through Python.
    """

    in_torch: bool

    @property
    def pid(self) -> int: ...

    @property
    def death(self) -> RunnerDeath | None: ...

    def load(self, slot: int, work: BufferSet) -> LoadReply | RunnerDeath: ...

    def unload(self, slot: int) -> None: ...

    def run_slot(self, slot: int) -> RunReply | RunnerDeath: ...

    def time_slots(
        self, first: int, count: int, *, iterations: int, warmup: int = 1, flush_bytes: int = 0, batch: bool = False,
        collect: bool = False, prepare: bool = True, read: Container[int] | None = None, core: int | None = None,
    ) -> TimeReply | RunnerDeath:  # fmt: skip
        """See `runner.session.RunnerSession.time_slots`."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Where each buffer lies in the input memfd and in the output memfd (-1: not there). Bytes."""

    in_offsets: tuple[int, ...]
    out_offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    in_bytes: int
    out_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RawReply:
    """A reply struct, validated. fences: what is around the process; the first reply says it."""

    error: ReplyError
    status: int
    message: str
    dying: bool
    has_workspace: bool
    has_ffi: bool
    fences: frozenset[Fence]
    workspace_bytes: int
    failed_at: int
    total_ns: int
    changed: tuple[int, ...]
    broken: tuple[int, ...]


def layout_of(buffers: Sequence[Buffer]) -> Layout:
    """Lay buffers out, each on a boundary of 64 bytes.

    Raises:
        HarnessError: a buffer contradicts itself, or there are too many.
    """
    if len(buffers) > MAX_BUFFERS:
        raise HarnessError(f"{len(buffers)} buffers; the runner takes at most {MAX_BUFFERS}")
    for index, buffer in enumerate(buffers):
        _check(index, buffer)
    offsets_in, in_bytes = offsets_of([b.size_bytes for b in buffers if b.kind != "output"])
    offsets_out, out_bytes = offsets_of([b.size_bytes for b in buffers if b.kind != "input"])
    coming, leaving = iter(offsets_in), iter(offsets_out)
    return Layout(
        in_offsets=tuple(-1 if b.kind == "output" else next(coming) for b in buffers),
        out_offsets=tuple(-1 if b.kind == "input" else next(leaving) for b in buffers),
        sizes=tuple(b.size_bytes for b in buffers), in_bytes=in_bytes, out_bytes=out_bytes,
    )  # fmt: skip


def offsets_of(sizes: Sequence[int]) -> tuple[tuple[int, ...], int]:
    """Where buffers of these sizes lie in an arena, in order, and the arena's size."""
    offsets, end = [], 0
    for size in sizes:
        offsets.append(end)
        end += -(-size // 64) * 64
    return tuple(offsets), end


def check_timing(count: int, iterations: int) -> None:
    """Raises:
    HarnessError: nothing would be timed.
    """
    if iterations < 1 or count < 1:
        raise HarnessError(f"timing needs at least one iteration and one set, not {iterations} and {count}")


def _check(index: int, buffer: Buffer) -> None:
    if (buffer.data is None) != (buffer.kind == "output"):
        raise HarnessError(f"buffer {index}: exactly inputs have data")
    if buffer.data is not None and memoryview(buffer.data).nbytes != buffer.size_bytes:
        raise HarnessError(f"buffer {index}: {memoryview(buffer.data).nbytes} bytes of data, {buffer.size_bytes} said")
    if not 0 < buffer.alignment <= 4096 or buffer.alignment & (buffer.alignment - 1):
        raise HarnessError(f"buffer {index}: alignment {buffer.alignment} is no power of two up to 4096")


def pack_load(slot: int, work: BufferSet, layout: Layout, *, exact: bool, nonce: int) -> bytes:
    """The LOAD command; the memfds of inputs and outputs travel with it.

    Raises:
        HarnessError: too many dims or scalars.
    """
    if len(work.dims) > MAX_DIMS or len(work.scalars) > MAX_SCALARS:
        raise HarnessError(f"the runner takes at most {MAX_DIMS} dims and {MAX_SCALARS} scalars")
    records = [
        _BUFFER.pack(_KINDS[b.kind], 0, max(i, 0), max(o, 0), b.size_bytes, b.alignment)
        for b, i, o in zip(work.buffers, layout.in_offsets, layout.out_offsets, strict=True)
    ]
    head = _HEAD.pack(
        _MAGIC, _VERSION, LOAD, FLAG_EXACT if exact else 0, slot, 0, len(work.buffers), len(work.dims),
        len(work.scalars), 0, nonce, 0, 0, 0, layout.in_bytes, layout.out_bytes,
    )  # fmt: skip
    return _request(head, work.dims, work.scalars, b"".join(records))


def pack_command(
    op: int, *, nonce: int, slot: int = 0, count: int = 0, flags: int = 0, iterations: int = 0, warmup: int = 0,
    flush_bytes: int = 0, core: int | None = None,
) -> bytes:  # fmt: skip
    """RUN, TIME (the memfd of the samples travels with it), UNLOAD or QUIT."""
    place = 0 if core is None else core + 1
    head = _HEAD.pack(
        _MAGIC, _VERSION, op, flags, slot, count, 0, 0, 0, place, nonce, iterations, warmup, flush_bytes, 0, 0
    )  # fmt: skip
    return _request(head, (), (), b"")


def _request(head: bytes, dims: Sequence[int], scalars: Sequence[float], buffers: bytes) -> bytes:
    dim_bytes = struct.pack(f"<{len(dims)}q", *dims).ljust(8 * MAX_DIMS, b"\0")
    scalar_bytes = struct.pack(f"<{len(scalars)}d", *scalars).ljust(8 * MAX_SCALARS, b"\0")
    return head + dim_bytes + scalar_bytes + buffers.ljust(_BUFFER.size * MAX_BUFFERS, b"\0")


def unpack_reply(data: bytes, *, op: int, nonce: int, buffers: int) -> RawReply | str:
    """Validate a reply to command `op` on sets of `buffers` buffers; a string says what is wrong with it."""
    if len(data) != _REPLY.size:
        return f"a reply of {len(data)} bytes"
    magic, version, got, flags, error, status, workspace, failed_at, echo, total, changed, broken, text = _REPLY.unpack(
        data
    )
    if (magic, version, got, echo) != (_MAGIC, _VERSION, op, nonce) or error >= len(_ERRORS):
        return "a reply that is not one to the command"
    changed_bits, broken_bits = _bits(changed), _bits(broken)
    if any(i >= buffers for i in changed_bits) or any(i >= buffers and i != MAX_BUFFERS for i in broken_bits):
        return "a reply about buffers that do not exist"
    return RawReply(
        error=_ERRORS[error], status=status, message=text.split(b"\0", 1)[0].decode(errors="replace"),
        dying=bool(flags & _DYING), has_workspace=bool(flags & _HAS_WORKSPACE), has_ffi=bool(flags & _HAS_FFI),
        fences=frozenset(name for name, bit in _FENCES.items() if flags & bit),
        workspace_bytes=workspace, failed_at=failed_at, total_ns=total,
        changed=changed_bits, broken=tuple(WORKSPACE if i == MAX_BUFFERS else i for i in broken_bits),
    )  # fmt: skip


def _bits(data: bytes) -> tuple[int, ...]:
    return tuple(8 * k + b for k, byte in enumerate(data) for b in range(8) if byte >> b & 1)
