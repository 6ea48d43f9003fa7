"""The program of the eager worker: `python -m kernelforge.runner.eager_main`. Loads torch; `eager.py` is its owner.

It is trusted: it runs torch and our operators, never a candidate. Requests are JSON packets with memfds attached,
replies are JSON packets; tensors travel as raw bytes in the memfds. Timing mirrors kforge_runner.c step by step.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import fcntl
import json
import mmap
import os
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch

from kernelforge.capture.precision import applied
from kernelforge.capture.types import TensorSpec
from kernelforge.cards.bind import to_bound
from kernelforge.cards.types import Variant
from kernelforge.digest import Json, decode_float
from kernelforge.executors.types import PACKET_BYTES
from kernelforge.operators import get_operator
from kernelforge.runner.tensors import check_outputs, clone_of, tensor_of, tensors_in, write_tensor

LEAD_CHUNK = 32
LEAD_BYTES = 256 << 20
SETTLE_CALLS, SETTLE_NS = 8, 1_000_000_000


@dataclass(slots=True, kw_only=True)
class Slot:
    """One loaded set.

    Attributes:
        call: makes the operator's call on the set's tensors.
        inputs: in the variant's order. pristine: the content of the mutated ones, by index.
        results: index of the input, or -1 - index of the output, for each buffer that is sent back.
        out: the output arena, mapped; out_offsets: of each buffer sent back.
    """

    variant: Variant
    call: Callable[[], object]
    inputs: list[torch.Tensor]
    pristine: dict[int, torch.Tensor]
    outputs: tuple[TensorSpec, ...]
    out: mmap.mmap | None
    out_offsets: list[int]

    def restore(self) -> None:
        for index, content in self.pristine.items():
            self.inputs[index].untyped_storage().copy_(content.untyped_storage())


class EagerServer:
    """Executes requests, one at a time, on one device."""

    def __init__(self, device: str) -> None:
        self._device = device
        self._slots: dict[int, Slot] = {}
        self._scratch: torch.Tensor | None = None
        self._settled = False

    def handle(self, request: Mapping[str, Json], fds: Sequence[int]) -> dict[str, Json]:
        """Execute one request.

        Raises:
            ForgeError, RuntimeError, ValueError, TypeError ...: whatever the operator raises; the caller reports it.
        """
        slot = _int(request["slot"])
        match request["op"]:
            case "load":
                self._slots[slot] = self._load(request, fds)
                self._settled = False
                return {}
            case "run":
                return self._run(self._slots[slot])
            case "time":
                return self._time(request, fds)
            case "unload":
                self._slots.pop(slot, None)
                return {}
        raise ValueError(f"unknown request {request['op']!r}")

    def _load(self, request: Mapping[str, Json], fds: Sequence[int]) -> Slot:
        variant = Variant.from_json(_mapping(request["variant"]))
        dims = {name: _int(value) for name, value in _mapping(request["dims"]).items()}
        scalars = {name: decode_float(value) for name, value in _mapping(request["scalars"]).items()}
        specs = [pattern.spec(dims, self._device) for pattern in variant.tensors]
        offsets, alignments = _ints(request["in_offsets"]), _ints(request["alignments"])
        arena = mmap.mmap(fds[0], 0, prot=mmap.PROT_READ) if os.fstat(fds[0]).st_size else b""
        inputs = [
            tensor_of(spec, arena, offset, alignment, self._device)
            for spec, offset, alignment in zip(specs, offsets, alignments, strict=True)
        ]
        bound = to_bound(variant, dims, scalars, inputs)
        return Slot(
            variant=variant, call=self._call_of(variant, bound), inputs=inputs,
            pristine={i: clone_of(inputs[i]) for i in variant.mutates},
            outputs=tuple(pattern.spec(dims, self._device) for pattern in variant.outputs),
            out=mmap.mmap(fds[1], 0) if os.fstat(fds[1]).st_size else None, out_offsets=_ints(request["out_offsets"]),
        )  # fmt: skip

    def _call_of(self, variant: Variant, bound: Mapping[str, object]) -> Callable[[], object]:
        """What is run and timed: the operator on the bound arguments."""
        call = get_operator(variant.operator).call
        return lambda: call(bound)

    def _run(self, slot: Slot) -> dict[str, Json]:
        slot.restore()
        with torch.no_grad(), self._state(slot):
            self._synchronise()
            started = time.perf_counter_ns()
            result = slot.call()
            self._synchronise()
            total = time.perf_counter_ns() - started
        results = [slot.inputs[i] for i in slot.variant.mutates] + (tensors_in(result) if slot.outputs else [])
        check_outputs(results[len(slot.variant.mutates) :], slot.outputs)
        for tensor, offset in zip(results, slot.out_offsets, strict=True):
            write_tensor(slot.out, offset, tensor)
        return {"total_ns": total}

    def _time(self, request: Mapping[str, Json], fds: Sequence[int]) -> dict[str, Json]:
        first, count = _int(request["slot"]), _int(request["count"])
        iterations, flush_bytes = _int(request["iterations"]), _int(request["flush_bytes"])
        slots = [self._slots[first + i] for i in range(count)]
        self._scratch_of(flush_bytes)  # before the warm-up, which leaves the heap as the timed calls find it
        if request["core"] is not None:
            _begin_on(_int(request["core"]))
        with torch.no_grad(), self._state(slots[0]):
            self._settle(slots[0])
            for i in range(_int(request["warmup"])):
                slots[i % count].restore()
                slots[i % count].call()
            self._synchronise()
            if request["batch"]:
                return {"total_ns": self._time_batch(slots, iterations), "core": _present_core()}
            timer = self._time_cuda if self._device == "cuda" else self._time_cpu
            samples = timer(slots, iterations, flush_bytes)
        os.pwrite(fds[0], b"".join(s.to_bytes(8, "little") for s in samples), 0)
        return {"total_ns": sum(samples), "core": _present_core()}

    def _settle(self, slot: Slot) -> None:
        """Untimed calls until the heap has blocks that the outputs fit into.

        glibc's aligned allocation climbs the heap for half a dozen large outputs before it reuses a freed block; each
        fresh block costs page faults that can exceed the call itself by far.
        """
        started = time.perf_counter_ns()
        for _ in range(0 if self._settled else SETTLE_CALLS):
            slot.restore()
            slot.call()
            if time.perf_counter_ns() - started > SETTLE_NS:
                break
        self._settled = True

    def _time_batch(self, slots: Sequence[Slot], iterations: int) -> int:
        calls = [slot.call for slot in slots]
        started = time.perf_counter_ns()
        for i in range(iterations):
            calls[i % len(calls)]()
        self._synchronise()
        return time.perf_counter_ns() - started

    def _time_cpu(self, slots: Sequence[Slot], iterations: int, flush_bytes: int) -> list[int]:
        scratch = self._scratch_of(flush_bytes)
        clock, samples = time.perf_counter_ns, []
        for i in range(iterations):
            slot = slots[i % len(slots)]
            slot.restore()
            kept = self._make_cold(slots, i, scratch) if flush_bytes else None
            call = slot.call
            started = clock()
            result = call()
            samples.append(clock() - started)
            del result, kept  # freed outside the window
        return samples

    def _make_cold(self, slots: Sequence[Slot], at: int, scratch: torch.Tensor) -> object:
        """Cold data, warm code, as in the runner. The untimed call's result is kept, lest its block be reused hot."""
        scratch.add_(1)
        if len(slots) == 1:
            return None
        following = slots[(at + 1) % len(slots)]
        following.restore()
        return following.call()

    def _time_cuda(self, slots: Sequence[Slot], iterations: int, flush_bytes: int) -> list[int]:
        """Device times of calls, each of which was queued before the device came to it.

        A call that the device had to wait for would show the host's pace. Where the host is too slow to queue a chunk
        while the device is kept busy, the late ones are dropped and the next chunk is half as long.
        """
        scratch = self._scratch_of(max(flush_bytes, LEAD_BYTES))
        flushed = scratch[: flush_bytes // scratch.element_size()]
        events = [(_event(), _event()) for _ in range(min(LEAD_CHUNK, iterations))]
        samples: list[int] = []
        length, made = LEAD_CHUNK, 0
        while len(samples) < iterations:
            chunk = events[: min(length, iterations - len(samples))]
            # As in the runner: keep the device busy while the host queues a chunk, then one untimed call.
            for _ in range(16):
                scratch.zero_()
            slots[(made - 1) % len(slots)].call()
            in_time = []
            for begin, end in chunk:
                slot = slots[made % len(slots)]
                made += 1
                slot.restore()
                if flush_bytes:
                    flushed.zero_()
                begin.record()
                result = slot.call()
                end.record()
                in_time.append(not begin.query())  # type: ignore[no-untyped-call]
                del result
            self._synchronise()
            times = [int(begin.elapsed_time(end) * 1e6) for begin, end in chunk]
            if all(in_time) or length == 1:
                # One alone that is late waits for the device itself, or takes longer to queue than the device is busy.
                samples += times
                continue
            samples += [time_ns for time_ns, ok in zip(times, in_time, strict=True) if ok]
            length = max(1, length // 2)
        return samples

    def _scratch_of(self, size_bytes: int) -> torch.Tensor:
        if self._scratch is None or self._scratch.numel() * 4 < size_bytes:
            self._scratch = torch.ones(max(size_bytes, 4) // 4, dtype=torch.int32, device=self._device)
        return self._scratch[: max(size_bytes, 4) // 4]

    @contextlib.contextmanager
    def _state(self, slot: Slot) -> Iterator[None]:
        """The state of torch under which the variant's calls were captured."""
        with applied(slot.variant.precision), contextlib.ExitStack() as stack:
            if slot.variant.autocast:
                dtype = getattr(torch, slot.variant.autocast)
                stack.enter_context(torch.autocast(self._device, dtype=dtype, cache_enabled=False))
            yield

    def _synchronise(self) -> None:
        if self._device == "cuda":
            torch.cuda.synchronize()


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


def _mapping(value: Json) -> Mapping[str, Json]:
    assert isinstance(value, Mapping)
    return value


def _int(value: Json) -> int:
    assert isinstance(value, int)
    return value


def _ints(value: Json) -> list[int]:
    assert isinstance(value, Sequence)
    return [_int(item) for item in value]


def tie_to(lifeline: int) -> None:
    """The kernel kills this process when the other end of the pipe closes, that is, when its owner is gone."""
    fcntl.fcntl(lifeline, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(lifeline, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(lifeline, fcntl.F_SETFL, fcntl.fcntl(lifeline, fcntl.F_GETFL) | os.O_ASYNC | os.O_NONBLOCK)
    try:
        if os.read(lifeline, 1) == b"":
            sys.exit(3)
    except BlockingIOError:
        return


def _begin_on(core: int) -> None:
    """Move this thread there; it may leave again, and threads that it makes are as free as it was before."""
    allowed = os.sched_getaffinity(0)
    if core in allowed:
        os.sched_setaffinity(0, {core})
        os.sched_setaffinity(0, allowed)


def _present_core() -> int:
    """The core that this thread runs on, or -1 where the C library does not tell."""
    try:
        return int(ctypes.CDLL(None).sched_getcpu())
    except AttributeError:
        return -1


def keep_freed_memory() -> None:
    """Let glibc reuse the pages of freed outputs.

    A large output is otherwise mapped anew at every call, and its page faults would be charged to eager alone: the
    runner's outputs are resident before the clock starts.
    """
    with contextlib.suppress(OSError, AttributeError):
        libc = ctypes.CDLL(None)
        m_trim_threshold, m_mmap_max = -1, -4
        libc.mallopt(m_mmap_max, 0)
        libc.mallopt(m_trim_threshold, 2**31 - 1)


def requests_on(channel: socket.socket) -> Iterator[tuple[Mapping[str, Json], list[int]]]:
    while True:
        data, fds, _, _ = socket.recv_fds(channel, PACKET_BYTES, 2)
        if not data:
            return
        yield json.loads(data), fds
        for fd in fds:
            os.close(fd)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--control", type=int, required=True)
    parser.add_argument("--lifeline", type=int, required=True)
    options = parser.parse_args()
    tie_to(options.lifeline)
    keep_freed_memory()
    torch.set_num_threads(options.threads)
    channel = socket.socket(fileno=options.control)
    if options.device == "cuda":
        torch.cuda.init()  # type: ignore[no-untyped-call]
    server = EagerServer(options.device)
    channel.send(json.dumps({"error": "", "torch": torch.__version__}).encode())
    for request, fds in requests_on(channel):
        try:
            answer: dict[str, Json] = {"error": "", **server.handle(request, fds)}
        except Exception as error:  # noqa: BLE001 - the boundary of this process: the owner raises it
            traceback.print_exc()
            answer = {"error": f"{type(error).__name__}: {error}"[:2000]}
        channel.send(json.dumps(answer).encode())


if __name__ == "__main__":
    main()
