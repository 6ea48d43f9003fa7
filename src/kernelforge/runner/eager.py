"""The judge's side of the eager worker: a torch process of its own that makes the baseline's values and times.

API (the same shapes as `session.RunnerSession`; every failure is a `HarnessError`, never a candidate's):
    EagerWorker(device, threads, limits=...)            context manager; the process starts at the first request
    .load(slot, variant_json, dims, scalars, buffers) -> None
    .run_slot(slot) -> RunReply
    .time_slots(first, count, *, iterations, warmup=1, flush_bytes=0, batch=False) -> TimeReply
    .unload(slot) -> None
    .run(variant_json, dims, scalars, buffers) -> RunReply
    .time(variant_json, dims, scalars, buffer_sets, *, iterations, ...) -> TimeReply
    .pid, .start_s, .torch_version, .close()

`dims` and `scalars` are mappings from the variant's names. `buffers` are those given to the runner: inputs (or inouts)
in the variant's order, then outputs. After a failure the next request starts a fresh process, with empty slots.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Self

from kernelforge.digest import Json, encode_float
from kernelforge.errors import HarnessError
from kernelforge.executors.kinds.process import ProcessWorker
from kernelforge.executors.types import Death, Limits
from kernelforge.runner import arena, protocol
from kernelforge.runner.protocol import Buffer, Layout, RunReply, TimeReply

START_WALL_S = 120.0
"""How long importing torch and making a CUDA context may take."""


class EagerWorker:
    """Eager PyTorch in a process of its own. Not thread-safe.

    Args:
        device: "cpu" or "cuda".
        threads: torch's intra-op threads.
        limits: of each request; a request that exceeds them is a `HarnessError`.
    """

    def __init__(self, device: str, threads: int, limits: Limits | None = None) -> None:
        self._device, self._threads = device, threads
        self._limits = limits or Limits(wall_s=300.0, memory_bytes=64 << 30)
        self._worker: ProcessWorker | None = None
        self._slots: dict[int, tuple[Layout, int]] = {}
        self.start_s = 0.0
        """Wall time from spawning to the worker's answer that torch is loaded, seconds."""
        self.torch_version = ""

    def __enter__(self) -> Self:
        self._alive()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def pid(self) -> int:
        return self._alive().pid

    def close(self) -> None:
        """End the process. Idempotent; a later request starts a new one."""
        for _, out_fd in self._slots.values():
            os.close(out_fd)
        self._slots.clear()
        if self._worker is not None:
            self._worker.close()
            self._worker = None

    def load(
        self, slot: int, variant: Json, dims: Mapping[str, int], scalars: Mapping[str, float],
        buffers: Sequence[Buffer],
    ) -> None:  # fmt: skip
        """Send a set of buffers; what was in the slot before is freed.

        Raises:
            HarnessError: the worker died, or the operator cannot be bound.
        """
        self._alive()
        self._forget(slot)
        layout = protocol.layout_of(buffers)
        request = load_request(slot, variant, dims, scalars, buffers, layout=layout)
        in_fd, out_fd = arena.input_arena(buffers, layout), arena.blank_arena(layout.out_bytes)
        self._slots[slot] = (layout, out_fd)
        try:
            self._ask(request, fds=(in_fd, out_fd))
        finally:
            os.close(in_fd)

    def unload(self, slot: int) -> None:
        """Free a slot."""
        self._forget(slot)
        self._ask({"op": "unload", "slot": slot})

    def run_slot(self, slot: int) -> RunReply:
        """Call the operator once on a loaded slot.

        Raises:
            HarnessError: the worker died, eager raised, or its output is not what the variant says.
        """
        layout, out_fd = self._slot(slot)
        started = time.monotonic()
        answer = self._ask({"op": "run", "slot": slot})
        wall_s = time.monotonic() - started
        outputs = arena.read_outputs(out_fd, layout)
        return RunReply(outputs=outputs, seconds=_number(answer, "total_ns") / 1e9, wall_s=wall_s)

    def time_slots(
        self, first: int, count: int, *, iterations: int, warmup: int = 1, flush_bytes: int = 0, batch: bool = False,
        core: int | None = None,
    ) -> TimeReply:  # fmt: skip
        """Call the operator `iterations` times; the meaning is that of `RunnerSession.time_slots`.

        Raises:
            HarnessError: the worker died, a slot is empty, or eager raised.
        """
        for slot in range(first, first + count):
            self._slot(slot)
        protocol.check_timing(count, iterations)
        request: dict[str, Json] = {
            "op": "time", "slot": first, "count": count, "iterations": iterations, "warmup": warmup,
            "flush_bytes": flush_bytes, "batch": batch, "core": core,
        }  # fmt: skip
        samples_fd = arena.blank_arena(8 * iterations)
        try:
            started = time.monotonic()
            answer = self._ask(request, fds=(samples_fd,))
            wall_s = time.monotonic() - started
            samples = () if batch else arena.read_samples(samples_fd, iterations)
        finally:
            os.close(samples_fd)
        ended_on = _number(answer, "core")
        return TimeReply(
            samples_ns=samples, total_ns=_number(answer, "total_ns"), wall_s=wall_s,
            core=ended_on if ended_on >= 0 else None,
        )  # fmt: skip

    def run(
        self, variant: Json, dims: Mapping[str, int], scalars: Mapping[str, float], buffers: Sequence[Buffer]
    ) -> RunReply:
        """Load a set into slot 0, call the operator once, unload."""
        self.load(0, variant, dims, scalars, buffers)
        reply = self.run_slot(0)
        self.unload(0)
        return reply

    def time(
        self, variant: Json, dims: Mapping[str, int], scalars: Mapping[str, float],
        sets: Sequence[Sequence[Buffer]], *, iterations: int, warmup: int = 1, flush_bytes: int = 0,
        batch: bool = False,
    ) -> TimeReply:  # fmt: skip
        """Load sets into slots 0, 1 ..., time over them in turn, unload."""
        for slot, buffers in enumerate(sets):
            self.load(slot, variant, dims, scalars, buffers)
        reply = self.time_slots(
            0, len(sets), iterations=iterations, warmup=warmup, flush_bytes=flush_bytes, batch=batch
        )
        for slot in range(len(sets)):
            self.unload(slot)
        return reply

    def _alive(self) -> ProcessWorker:
        if self._worker is not None and self._worker.death is None:
            return self._worker
        self.close()
        started = time.monotonic()
        argv = [sys.executable, "-m", f"{__package__}.eager_main", "--device", self._device]
        self._worker = ProcessWorker([*argv, "--threads", str(self._threads)], limits=self._limits, env=None)
        ready = _answer(self._worker.request(b"", wall_s=START_WALL_S))
        self.torch_version = str(ready.get("torch", ""))
        self.start_s = time.monotonic() - started
        return self._worker

    def _ask(self, request: Mapping[str, Json], *, fds: Sequence[int] = ()) -> Mapping[str, Json]:
        return _answer(self._alive().request(json.dumps(request).encode(), fds=fds))

    def _slot(self, slot: int) -> tuple[Layout, int]:
        if slot not in self._slots:
            raise HarnessError(f"nothing is loaded in slot {slot} of the eager worker")
        return self._slots[slot]

    def _forget(self, slot: int) -> None:
        if slot in self._slots:
            os.close(self._slots.pop(slot)[1])


def load_request(
    slot: int, variant: Json, dims: Mapping[str, int], scalars: Mapping[str, float], buffers: Sequence[Buffer], *,
    layout: Layout,
) -> dict[str, Json]:  # fmt: skip
    """What a process with torch in it must know to make tensors of an arena's bytes."""
    inputs = [i for i, b in enumerate(buffers) if b.kind != "output"]
    return {
        "op": "load", "slot": slot, "variant": variant, "dims": dict(dims),
        "scalars": {name: encode_float(value) for name, value in scalars.items()},
        "in_offsets": [layout.in_offsets[i] for i in inputs],
        "alignments": [buffers[i].alignment for i in inputs],
        "out_offsets": [offset for offset in layout.out_offsets if offset >= 0],
    }  # fmt: skip


def _answer(data: bytes | Death) -> Mapping[str, Json]:
    if isinstance(data, Death):
        last = data.output.strip().splitlines()[-1:] or [""]
        raise HarnessError(f"the eager worker died ({data.kind}): {data.detail}. {last[0]}")
    answer: Mapping[str, Json] = json.loads(data)
    if answer["error"]:
        raise HarnessError(f"eager failed: {answer['error']}")
    return answer


def _number(answer: Mapping[str, Json], key: str) -> int:
    value = answer[key]
    assert isinstance(value, int)
    return value
