"""Times each entry of a package against eager through the real dispatch path, in this process.

Only binaries that the judge accepted come here. Both sides are called from Python exactly as a model calls them: the
operator's function, once with the package dispatched and once without, alternating in ABBA order. This is also the
held-out timing: nothing that the search measured enters it.

Two regimes are timed. *Repeated*: the same call again and again, its inputs in the nearest cache that holds them. *In
flow*, for tensors that are large enough for it to matter: before each call a producer writes the first input, and the
time ends when a consumer has read the output, as in a model. A kernel that streams its output past the caches may win
the first and lose the second. Where calls are timed in flow, that decides; a loss in the other regime decides as well.

No call meets the inputs of an earlier one: one element changes before each (repeated calls on CUDA: before each block
of them), on both sides, so that a kernel which remembers what it saw gains nothing. The timing slot of the device is
held, and what others used of the CPUs meanwhile is noted; was it too much, all is timed once more in a quieter moment.

Before and after, outputs through dispatch are judged on fresh inputs: the judge has seen the kernel in the runner
alone, and a kernel that can tell the two apart must be right here.
"""

from __future__ import annotations

import ctypes
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from kernelforge.benchmark.clock import ForeignLoad, wait_until_quiet
from kernelforge.benchmark.points import representative_points
from kernelforge.benchmark.slot import timing_slot
from kernelforge.benchmark.statistics import Pairs, median, paired_interval, variant_interval
from kernelforge.benchmark.types import Interval
from kernelforge.cards.bind import to_bound
from kernelforge.cards.examples import ExampleStore
from kernelforge.cards.types import SizePoint, Variant, VariantRecord
from kernelforge.digest import Json
from kernelforge.operators import get_operator
from kernelforge.settings import Settings

if TYPE_CHECKING:
    from torch import Tensor

Samples: TypeAlias = "tuple[tuple[float, ...], tuple[float, ...]]"
"""Of eager and of the dispatched calls, microseconds per call; i-th with i-th a pair."""

BLOCK_S = 0.004
"""One sample is a block of calls at least this long: longer than the clock's and the scheduler's grain."""

BUSY_SHARE = 0.2
"""Of the CPUs, from which on others disturb: as `benchmark.protocol.Protocol.busy_share`, whose module loads torch."""
QUIET_TIMEOUT_S = 20.0

FLOW_BYTES = {"cpu": 1 << 18, "cuda": 1 << 22}
"""From how many bytes of the largest tensor on calls are timed in flow: below, all is in the nearest caches anyway, and
the producer and the consumer would take most of the time."""


JUDGED_DISTRIBUTIONS = ("normal", "scaled")
"""Of the inputs on which outputs through dispatch are judged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DispatchedPoint:
    """Paired samples at one size point, microseconds per call, i-th with i-th a pair.

    Attributes:
        calls: what the point stands for.
        eager_us, dispatched_us: of repeated calls.
        flow_eager_us, flow_dispatched_us: of calls in flow, with their consumer; empty where that was not timed.
        foreign_cpu_share: what others used of the machine's CPUs meanwhile, in [0, 1].
    """

    dims: Mapping[str, int]
    calls: int
    eager_us: tuple[float, ...]
    dispatched_us: tuple[float, ...]
    flow_eager_us: tuple[float, ...] = ()
    flow_dispatched_us: tuple[float, ...] = ()
    foreign_cpu_share: float = 0.0

    @property
    def speedup(self) -> Interval:
        """That of the regime which decides."""
        return _deciding(self.repeated, self.in_flow)

    @property
    def repeated(self) -> Interval:
        return paired_interval(self.eager_us, self.dispatched_us)

    @property
    def in_flow(self) -> Interval | None:
        """None where it was not timed."""
        return paired_interval(self.flow_eager_us, self.flow_dispatched_us) if self.flow_eager_us else None

    def pairs(self, *, flow: bool) -> Pairs:
        """The samples in flow if there are any and they are wanted, else those of repeated calls."""
        if flow and self.flow_eager_us:
            return Pairs(calls=self.calls, eager_us=self.flow_eager_us, candidate_us=self.flow_dispatched_us)
        return Pairs(calls=self.calls, eager_us=self.eager_us, candidate_us=self.dispatched_us)


@dataclass(frozen=True, slots=True, kw_only=True)
class DispatchTiming:
    """What calls through dispatch cost, per size point.

    Attributes:
        wrong: what was wrong with an output through dispatch, or "". Then nothing else counts.
    """

    points: tuple[DispatchedPoint, ...]
    wrong: str = ""

    @property
    def interval(self) -> Interval:
        """Of the whole variant, weighted by calls, in the regime which decides."""
        repeated, _, _ = variant_interval([p.pairs(flow=False) for p in self.points])
        if not any(p.flow_eager_us for p in self.points):
            return repeated
        in_flow, _, _ = variant_interval([p.pairs(flow=True) for p in self.points])
        return _deciding(repeated, in_flow)

    @property
    def foreign_cpu_share(self) -> float:
        """The most that others used at any point."""
        return max((p.foreign_cpu_share for p in self.points), default=0.0)

    @property
    def busy(self) -> bool:
        """Whether others used so much of the machine that times mean less than they seem to."""
        return self.foreign_cpu_share > BUSY_SHARE

    def wins_from(self, variant: Variant, threshold: float) -> int | None:
        """From how many elements of the largest tensor on every timed point beats the threshold beyond the noise.

        None if not even the largest point does. With small calls the dispatch may cost more than the kernel wins.
        """
        best = None
        for point in sorted(self.points, key=lambda p: -variant.largest_elements(p.dims)):
            if point.speedup.low <= threshold:
                break
            best = variant.largest_elements(point.dims)
        return best

    def to_json(self) -> Json:
        return {
            "speedup": {"median": self.interval.median, "low": self.interval.low, "high": self.interval.high},
            "points": [
                {
                    "dims": dict(p.dims),
                    "calls": p.calls,
                    "eager_us": list(p.eager_us),
                    "dispatched_us": list(p.dispatched_us),
                    "flow_eager_us": list(p.flow_eager_us),
                    "flow_dispatched_us": list(p.flow_dispatched_us),
                    "foreign_cpu_share": p.foreign_cpu_share,
                }
                for p in self.points
            ],
        }


def _deciding(repeated: Interval, in_flow: Interval | None) -> Interval:
    """Calls in flow are what a model makes; but what surely loses when it is repeated does not win."""
    return repeated if in_flow is None or repeated.high < 1.0 else in_flow


def time_through_dispatch(
    package: Path,
    records: Sequence[VariantRecord],
    examples: ExampleStore,
    settings: Settings,
    *,
    say: Callable[[str], None],
    budget_s: float = 1.5,
) -> Iterator[DispatchTiming]:
    """One timing for each record, whose variants are those of the package's entries. `budget_s` bounds each.

    Raises:
        DeviceBusy: another process times on the device for too long.
    """
    from kernelforge.dispatch.loading import load

    loaded = load(package, settings=settings)
    for record in records:
        say(f"timing {record.variant.label} through dispatch")
        points = []
        wrong = _wrong_output(loaded, record)
        if wrong:
            yield DispatchTiming(points=(), wrong=wrong)
            continue
        for point, calls, share in representative_points(record):
            # Every point gets a fair part of the time: a decision for its sizes may depend on it alone.
            seconds = budget_s * max(share, 0.25)
            timed = partial(_time_point, loaded, record, point, examples, calls=calls, budget_s=seconds)
            with timing_slot(settings, record.variant.device):
                points.append(_time_quietly(timed))
        yield DispatchTiming(points=tuple(points), wrong=_wrong_output(loaded, record))


def _wrong_output(loaded: Any, record: VariantRecord) -> str:
    """Judge outputs through dispatch at the costliest sizes, on inputs that nobody has seen; "" if they are right."""
    import torch

    from kernelforge.verify.compare import Mismatch, compare
    from kernelforge.verify.reference import evaluate, reduction_terms, truths
    from kernelforge.verify.tolerance import expect

    variant = record.variant
    point, _, _ = representative_points(record)[0]
    terms = reduction_terms(variant, point.dims, point.scalars)
    for distribution in JUDGED_DISTRIBUTIONS:
        inputs = _drawn(variant, point, distribution)
        exact = truths(variant, point.dims, point.scalars, inputs, secrets.randbits(63))
        with torch.inference_mode(), _autocast(variant):
            eager = evaluate(variant, point.dims, point.scalars, inputs)
            with loaded.dispatch():
                outputs = evaluate(variant, point.dims, point.scalars, inputs)
        for got, want, truth in zip(outputs, eager, exact, strict=True):
            verdict = compare(expect(want, truth.values, truth.sensitivity, terms=terms, reach=truth.reach), got)
            if isinstance(verdict, Mismatch):
                return verdict.detail
    return ""


def _time_quietly(timed: Callable[[], DispatchedPoint]) -> DispatchedPoint:
    """The point, timed once more if others used too much of the machine; the quieter of the two."""
    found: list[DispatchedPoint] = []
    for _ in range(2):
        load = ForeignLoad(())
        point = timed()
        found.append(replace(point, foreign_cpu_share=load.share()))
        if found[-1].foreign_cpu_share <= BUSY_SHARE:
            break
        wait_until_quiet((), share=BUSY_SHARE, timeout_s=QUIET_TIMEOUT_S)
    return min(found, key=lambda p: p.foreign_cpu_share)


def _time_point(
    loaded: Any, record: VariantRecord, point: SizePoint, examples: ExampleStore, *, calls: int, budget_s: float
) -> DispatchedPoint:
    import torch

    operator = get_operator(record.variant.operator)
    tensors = _inputs(record, point, examples)
    bound = to_bound(record.variant, point.dims, point.scalars, tensors)
    synchronize = torch.cuda.synchronize if record.variant.device == "cuda" else _nothing
    changed = next((t for t in tensors if t.is_floating_point() and t.numel()), None)

    def block(calls: int) -> float:
        """Microseconds per call of one block."""
        cell = _cell(changed) if changed is not None else _NO_CELL
        mask = (1 << 8 * cell.itemsize) - 1
        synchronize()
        started = time.perf_counter()
        for number in range(calls):
            cell[0] = number & mask
            operator.call(bound)
        synchronize()
        return (time.perf_counter() - started) / calls * 1e6

    with torch.inference_mode(), _autocast(record.variant):
        eager_us, dispatched_us = _alternate(loaded, block, budget_s)
        flow = _flow_block(lambda: operator.call(bound), tensors)
        flow_us: Samples = ((), ())
        if flow is not None:
            flow_us = _alternate(loaded, flow, budget_s)
    return DispatchedPoint(
        dims=point.dims, calls=calls, eager_us=eager_us, dispatched_us=dispatched_us,
        flow_eager_us=flow_us[0], flow_dispatched_us=flow_us[1],
    )  # fmt: skip


def _autocast(variant: Variant) -> AbstractContextManager[object]:
    """The state under which the variant's calls were captured."""
    import torch

    if not variant.autocast:
        return nullcontext()
    return torch.autocast(variant.device, dtype=getattr(torch, variant.autocast), cache_enabled=False)


def _alternate(loaded: Any, block: Callable[[int], float], budget_s: float) -> Samples:
    """Blocks without and with the package in ABBA order, until the time is up; microseconds per call of each."""
    eager_us: list[float] = []
    dispatched_us: list[float] = []
    calls = _calls_per_block(block, loaded)
    deadline = time.perf_counter() + budget_s
    while len(eager_us) < 12 or (time.perf_counter() < deadline and len(eager_us) < 60):
        first_eager = len(eager_us) % 2 == 0
        if first_eager:
            eager_us.append(block(calls))
        with loaded.dispatch():
            block(1)  # the switch itself is not part of a call
            dispatched_us.append(block(calls))
        if not first_eager:
            eager_us.append(block(calls))
    return tuple(eager_us), tuple(dispatched_us)


def _calls_per_block(block: Callable[[int], float], loaded: Any) -> int:
    block(1)
    with loaded.dispatch():
        block(1)
        fastest_us = block(3)
    return max(1, min(2000, int(BLOCK_S * 1e6 / max(fastest_us, 0.5))))


def _flow_block(call: Callable[[], Any], tensors: Sequence[Tensor]) -> Callable[[int], float] | None:
    """A block of calls in flow: the median of call and consumer, microseconds. None where that makes no sense."""
    import torch

    first = tensors[0]
    largest = max(t.numel() * t.element_size() for t in tensors)
    repeats = any(n > 1 and s == 0 for n, s in zip(first.shape, first.stride(), strict=True))
    if largest < FLOW_BYTES[first.device.type] or repeats:
        return None
    source = first.clone()
    element = _any_element(source)
    others = torch.randn(256, device=first.device).to(first.dtype) if first.is_floating_point() else None
    # Operators of torch's own tables are never replaced.
    produce, consume = torch.ops.aten.copy_.default, torch.ops.aten.sum.default
    clock = _DeviceClock() if first.is_cuda else _HostClock()

    def block(calls: int) -> float:
        start = secrets.randbelow(256)
        for number in range(calls):
            if others is not None:
                produce(element, others[(start + number) % len(others)])
            produce(first, source)
            clock.start()
            result = call()
            consume(result if isinstance(result, torch.Tensor) else result[0])
            clock.stop()
        return median(clock.times_us())

    return block


_NO_CELL = memoryview(bytearray(1))


def _cell(tensor: Tensor) -> memoryview:
    """Memory of the lower half of one element's bits: to write there makes another input, in some tens of nanoseconds.

    On CUDA, where nothing is as cheap, the element is changed here and now, and the memory is nobody's.
    """
    import torch

    element = _any_element(tensor)
    torch.ops.aten.copy_.default(element, torch.randn((), dtype=torch.float32, device=tensor.device))
    if tensor.is_cuda:
        return _NO_CELL
    half = tensor.element_size() // 2
    formats: Mapping[int, Literal["B", "H", "I"]] = {1: "B", 2: "H", 4: "I"}
    return memoryview((ctypes.c_char * half).from_address(element.data_ptr())).cast("B").cast(formats[half])


def _any_element(tensor: Tensor) -> Tensor:
    """A view of one element, without dimensions."""
    return tensor[tuple(secrets.randbelow(size) for size in tensor.shape)]


class _HostClock:
    """Intervals by the monotonic clock."""

    def __init__(self) -> None:
        self._times: list[float] = []
        self._started = 0.0

    def start(self) -> None:
        self._started = time.perf_counter()

    def stop(self) -> None:
        self._times.append((time.perf_counter() - self._started) * 1e6)

    def times_us(self) -> list[float]:
        """The intervals since the last time that this was asked."""
        times, self._times = self._times, []
        return times


class _DeviceClock:
    """Intervals by events on the current CUDA stream."""

    def __init__(self) -> None:
        self._events: list[Any] = []

    def start(self) -> None:
        self._record()

    def stop(self) -> None:
        self._record()

    def times_us(self) -> list[float]:
        """The intervals since the last time that this was asked; waits for the device."""
        import torch

        torch.cuda.synchronize()
        events, self._events = self._events, []
        return [1e3 * a.elapsed_time(b) for a, b in zip(events[::2], events[1::2], strict=True)]

    def _record(self) -> None:
        import torch

        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        self._events.append(event)


def _inputs(record: VariantRecord, point: SizePoint, examples: ExampleStore) -> list[Tensor]:
    """The captured tensors of the point, or drawn ones where none are stored, on the variant's device."""
    variant = record.variant
    if point.example and examples.has(point.example):
        return examples.get(point.example, device=variant.device)
    return _drawn(variant, point, "normal")


def _drawn(variant: Variant, point: SizePoint, distribution: str) -> list[Tensor]:
    import torch

    from kernelforge.verify.draw import draw_inputs

    specs = [pattern.spec(point.dims, variant.device) for pattern in variant.tensors]
    drawn = draw_inputs(
        variant, specs, distribution, pools=[None] * len(specs), seed=secrets.randbits(63),
        device=torch.device(variant.device),
    )  # fmt: skip
    return list(drawn)


def _nothing() -> None:
    """The CPU has nothing to wait for."""
