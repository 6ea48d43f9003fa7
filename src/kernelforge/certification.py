"""Times an entry of a package against eager through the real dispatch path, in this process. Owns `DispatchTiming`.

Here for eager mode; `graph_timing` and `compiled_timing` do the same in the other modes of dispatch.

Only binaries that the judge accepted come here. Both sides are called from Python exactly as a model calls them: the
operator's function, once with the package dispatched and once without, alternating in ABBA order. This is also the
held-out timing: nothing that the search measured enters it.

Two regimes are timed. *Repeated*: calls in a row, their inputs in a near cache if they are small. *In
flow*, for tensors that are large enough for it to matter: before each call a producer writes the first input, and the
time ends when a consumer has read the output, as in a model. A kernel that streams its output past the caches may win
the first and lose the second. Where calls are timed in flow, that decides; a loss in the other regime decides as well.

Before and after, outputs through dispatch are judged on fresh inputs: the judge has seen the kernel in the runner
alone, and a kernel that can tell the two apart must be right here.

No call meets the inputs of an earlier one: all elements of the large inputs are written anew for each, on both sides,
so that a kernel which remembers what it saw, whole or in parts, gains nothing. The timing slot of the device is held,
and what others used of the CPUs meanwhile is noted; was it too much, all is timed once more in a quieter moment.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from kernelforge.benchmark.clock import BUSY_SHARE, ForeignLoad, wait_until_quiet
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
from kernelforge.timing_inputs import FreshInputs, drawn, inputs_of, memory_of, under_autocast, write_others

if TYPE_CHECKING:
    from torch import Tensor

    from kernelforge.dispatch.loading import LoadedPackage

Samples: TypeAlias = "tuple[tuple[float, ...], tuple[float, ...]]"
"""Of eager and of the dispatched calls, microseconds per call; i-th with i-th a pair."""

BLOCK_S = 0.004
"""One sample is a block of calls at least this long: longer than the clock's and the scheduler's grain."""

QUIET_TIMEOUT_S = 20.0

LEAST_PAIRS, MOST_PAIRS = 12, 120

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
        eager_us, dispatched_us: of repeated calls. In a mode other than eager, `eager_us` are of that mode's own path.
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
    """What calls through dispatch cost in one mode, per size point, and what they cost there without the package.

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

    def speedup_json(self) -> Json:
        return {"median": self.interval.median, "low": self.interval.low, "high": self.interval.high}

    def to_json(self) -> Json:
        return {
            "speedup": self.speedup_json(),
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


def time_dispatched(
    loaded: LoadedPackage,
    record: VariantRecord,
    examples: ExampleStore,
    settings: Settings,
    *,
    budget_s: float = 1.5,
    patience_s: float = QUIET_TIMEOUT_S,
) -> DispatchTiming:
    """Time the calls of one variant through a package that is loaded. `budget_s` bounds each regime of all points.

    Args:
        patience_s: how long to wait at each point for others to leave the CPUs alone, if they did not; 0 takes the
            times as they are.

    Raises:
        DeviceBusy: another process times on the device for too long.
    """

    def dispatched(point: SizePoint, inputs: Sequence[Tensor]) -> Sequence[Tensor]:
        from kernelforge.verify.reference import evaluate

        with loaded.dispatch():
            return evaluate(record.variant, point.dims, point.scalars, inputs)

    points = []
    wrong = wrong_output(record, dispatched)
    if wrong:
        return DispatchTiming(points=(), wrong=wrong)
    for point, calls, seconds in timed_points(record, budget_s):
        timed = partial(_time_point, loaded, record, point, examples, calls=calls, budget_s=seconds)
        with timing_slot(settings, record.variant.device):
            points.append(_time_quietly(timed, patience_s=patience_s))
    return DispatchTiming(points=tuple(points), wrong=wrong_output(record, dispatched))


def timed_points(record: VariantRecord, budget_s: float) -> Iterator[tuple[SizePoint, int, float]]:
    """The points to time, the costliest first, each with the calls it stands for and its seconds."""
    for point, calls, share in representative_points(record):
        # Every point gets a fair part of the time: a decision for its sizes may depend on it alone.
        yield point, calls, budget_s * max(share, 0.25)


def wrong_output(
    record: VariantRecord,
    dispatched: Callable[[SizePoint, Sequence[Tensor]], Sequence[Tensor]],
    *,
    at: SizePoint | None = None,
) -> str:
    """Judge outputs on inputs that nobody has seen; "" if they are right.

    Args:
        dispatched: the outputs, or changed inputs, that the package gives for copies of these inputs.
        at: the sizes; by default the costliest.
    """
    import torch

    from kernelforge.verify.compare import Mismatch, compare
    from kernelforge.verify.reference import evaluate, reduction_terms, truths
    from kernelforge.verify.tolerance import expect

    variant = record.variant
    point = representative_points(record)[0][0] if at is None else at
    terms = reduction_terms(variant, point.dims, point.scalars)
    for distribution in JUDGED_DISTRIBUTIONS:
        inputs = drawn(variant, point, distribution)
        exact = truths(variant, point.dims, point.scalars, inputs, secrets.randbits(63))
        with torch.inference_mode(), under_autocast(variant):
            eager = evaluate(variant, point.dims, point.scalars, inputs)
            outputs = dispatched(point, inputs)
        for got, want, truth in zip(outputs, eager, exact, strict=True):
            verdict = compare(
                expect(want, truth.values, truth.sensitivity, terms=terms, shared=truth.shared, reach=truth.reach), got
            )
            if isinstance(verdict, Mismatch):
                return verdict.detail
    return ""


def _time_quietly(timed: Callable[[], DispatchedPoint], *, patience_s: float = QUIET_TIMEOUT_S) -> DispatchedPoint:
    """The point, timed once more if others used too much of the machine, and there is patience; the quieter of two."""
    first = _with_foreign_load(timed)
    if first.foreign_cpu_share <= BUSY_SHARE or patience_s <= 0:
        return first
    wait_until_quiet((), share=BUSY_SHARE, timeout_s=patience_s)
    return min(first, _with_foreign_load(timed), key=lambda p: p.foreign_cpu_share)


def _with_foreign_load(timed: Callable[[], DispatchedPoint]) -> DispatchedPoint:
    load = ForeignLoad(())
    return replace(timed(), foreign_cpu_share=load.share())


def _time_point(
    loaded: Any, record: VariantRecord, point: SizePoint, examples: ExampleStore, *, calls: int, budget_s: float
) -> DispatchedPoint:
    import torch

    operator = get_operator(record.variant.operator)
    tensors = inputs_of(record, point, examples)
    bound = to_bound(record.variant, point.dims, point.scalars, tensors)
    synchronize = torch.cuda.synchronize if record.variant.device == "cuda" else _nothing
    fresh = FreshInputs(tensors)
    calls_of_block = [to_bound(record.variant, point.dims, point.scalars, inputs) for inputs in fresh.sets]

    def block(calls: int) -> float:
        """Microseconds per call of one block, of at most as many calls as there are sets of inputs."""
        fresh.renew(calls)
        chosen = calls_of_block[:calls]
        synchronize()
        started = time.perf_counter()
        for inputs in chosen:
            operator.call(inputs)
        synchronize()
        return (time.perf_counter() - started) / len(chosen) * 1e6

    with torch.inference_mode(), under_autocast(record.variant):
        eager_us, dispatched_us = _alternate(loaded, block, budget_s, most_calls=len(fresh.sets))
        flow = _flow_block(lambda: operator.call(bound), tensors)
        flow_us: Samples = ((), ())
        if flow is not None:
            flow_us = _alternate(loaded, flow, budget_s, most_calls=2000)
    return DispatchedPoint(
        dims=point.dims, calls=calls, eager_us=eager_us, dispatched_us=dispatched_us,
        flow_eager_us=flow_us[0], flow_dispatched_us=flow_us[1],
    )  # fmt: skip


def _alternate(loaded: Any, block: Callable[[int], float], budget_s: float, *, most_calls: int) -> Samples:
    """Blocks without and with the package in ABBA order, until the time is up; microseconds per call of each."""
    calls = min(_calls_per_block(block, loaded), most_calls)

    def dispatched() -> float:
        with loaded.dispatch():
            block(1)  # the switch itself is not part of a call
            return block(calls)

    return in_turn(lambda: block(calls), dispatched, budget_s)


def in_turn(plain: Callable[[], float], served: Callable[[], float], budget_s: float) -> Samples:
    """Samples without and with the kernel in ABBA order until the time is up, `LEAST_PAIRS` to `MOST_PAIRS` of each.

    Args:
        plain, served: take one sample each, microseconds per call.
    """
    plain_us: list[float] = []
    served_us: list[float] = []
    turns = [(plain, plain_us), (served, served_us)]
    deadline = time.perf_counter() + budget_s
    while len(plain_us) < LEAST_PAIRS or (time.perf_counter() < deadline and len(plain_us) < MOST_PAIRS):
        for sample, times in list(turns):
            times.append(sample())
        turns.reverse()
    return tuple(plain_us), tuple(served_us)


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
    written, base = memory_of(first), memory_of(first).clone()
    # Operators of torch's own tables are never replaced.
    consume = torch.ops.aten.sum.default
    clock = _DeviceClock() if first.is_cuda else _HostClock()

    def block(calls: int) -> float:
        for _ in range(calls):
            write_others(base, written)
            clock.start()
            result = call()
            consume(result if isinstance(result, torch.Tensor) else result[0])
            clock.stop()
        return median(clock.times_us())

    return block


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


def _nothing() -> None:
    """The CPU has nothing to wait for."""
