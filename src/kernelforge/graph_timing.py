"""Times an entry of a package against eager inside of CUDA graphs, where no host works between two calls.

Many calls of the operator, each on inputs of its own, are captured into one graph as eager makes them, and into another
as the package serves them; the two are replayed in turn, in ABBA order, with other values in all inputs before each
replay. What a launch costs the host is in neither: an entry that loses in eager mode because of it may win here, and
one that wins there because it saves a launch may lose. The device is kept busy until the host has queued a whole
replay, so that the events around it see the device alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from kernelforge.benchmark.slot import timing_slot
from kernelforge.cards.bind import to_bound
from kernelforge.cards.examples import ExampleStore
from kernelforge.cards.types import SizePoint, VariantRecord
from kernelforge.certification import DispatchedPoint, DispatchTiming, in_turn, timed_points, wrong_output
from kernelforge.errors import ForgeError
from kernelforge.operators import get_operator
from kernelforge.settings import Settings
from kernelforge.timing_inputs import FreshInputs, inputs_of, memory_of, under_autocast

if TYPE_CHECKING:
    from torch import Tensor

    from kernelforge.dispatch.loading import LoadedPackage

NO_DEVICE = "needs a CUDA device"

REPLAY_US = 1000.0
"""A replay takes at least so long, if there are inputs enough: far beyond the grain of events."""
LEAST_SETS = 16
"""Of inputs, also where they are too large for a cache: fewer calls would be too short a replay."""
WARM_UP_CALLS = 3
AHEAD_CYCLES = 400_000
"""For so long the device spins before a replay: some hundred microseconds, in which the host queues it."""


def time_in_graphs(
    loaded: LoadedPackage,
    record: VariantRecord,
    examples: ExampleStore,
    settings: Settings,
    *,
    budget_s: float = 0.5,
) -> DispatchTiming | str:
    """Time the calls of one variant in CUDA graphs, or say why that cannot be done. `budget_s` bounds all its points.

    Raises:
        DeviceBusy: another process times on the device for too long.
    """
    if record.variant.device != "cuda":
        return NO_DEVICE
    import torch

    points = []
    try:
        wrong = wrong_output(record, lambda point, inputs: _replayed(loaded, record, point, inputs))
        if wrong:
            return DispatchTiming(points=(), wrong=f"in a CUDA graph: {wrong}")
        for point, calls, seconds in timed_points(record, budget_s):
            with timing_slot(settings, "cuda"), torch.inference_mode(), under_autocast(record.variant):
                timed = _time_point(loaded, record, point, examples, calls=calls, budget_s=seconds)
            if isinstance(timed, str):
                return timed
            points.append(timed)
    except (RuntimeError, ForgeError) as error:
        # What torch says of an operator that waits for the device, which no graph can hold, is its first line.
        return f"cannot be captured in a CUDA graph: {str(error).splitlines()[0]}"
    return DispatchTiming(points=tuple(points))


def _replayed(
    loaded: LoadedPackage, record: VariantRecord, point: SizePoint, inputs: Sequence[Tensor]
) -> Sequence[Tensor]:
    """What a graph that was captured on other inputs gives for these."""
    import torch

    from kernelforge.dispatch.stream_graphs import capture_graph
    from kernelforge.verify.layout import clone_like

    variant = record.variant
    fixed = clone_like(inputs)
    for tensor in fixed:
        memory_of(tensor).zero_()
    bound = to_bound(variant, point.dims, point.scalars, fixed)
    operator = get_operator(variant.operator)

    def once() -> Any:
        return operator.call(bound)

    with loaded.dispatch(mode="graphed"):
        result, graph = capture_graph(once, warm_up=once)
    for static, given in zip(fixed, inputs, strict=True):
        memory_of(static).copy_(memory_of(given))
    graph.replay()
    torch.cuda.synchronize()
    if variant.mutates:
        return [fixed[i] for i in sorted(variant.mutates)]
    return [result] if isinstance(result, torch.Tensor) else [t for t in result if isinstance(t, torch.Tensor)]


def _time_point(
    loaded: LoadedPackage, record: VariantRecord, point: SizePoint, examples: ExampleStore, *, calls: int,
    budget_s: float,
) -> DispatchedPoint | str:  # fmt: skip
    """One point, or why its times would not be the kernel's."""
    from kernelforge.dispatch.stream_graphs import capture_graph

    variant = record.variant
    operator = get_operator(variant.operator)
    fresh = FreshInputs(inputs_of(record, point, examples), least=LEAST_SETS)
    bound = [to_bound(variant, point.dims, point.scalars, inputs) for inputs in fresh.sets]

    def some(count: int) -> Callable[[], None]:
        def run() -> None:
            for arguments in bound[:count]:
                operator.call(arguments)

        return run

    def captured(count: int) -> Any:
        return capture_graph(some(count), warm_up=some(WARM_UP_CALLS))[1]

    few = min(LEAST_SETS, len(bound))
    with loaded.dispatch(mode="graphed"):
        one_us = _replay_us(captured(few), lambda: fresh.renew(few), few)
        count = max(few, min(len(bound), math.ceil(REPLAY_US / max(one_us, 0.01))))
        served = _hits(loaded, variant.id)
        dispatched = captured(count)
        served = _hits(loaded, variant.id) - served
    if served < count:
        return "its calls were not served when they were captured"
    eager = captured(count)
    eager_replay, dispatched_replay = (
        partial(_replay_us, graph, lambda: fresh.renew(count), count) for graph in (eager, dispatched)
    )
    eager_replay()
    dispatched_replay()
    eager_us, dispatched_us = in_turn(eager_replay, dispatched_replay, budget_s)
    return DispatchedPoint(dims=point.dims, calls=calls, eager_us=eager_us, dispatched_us=dispatched_us)


def _replay_us(graph: Any, renew: Callable[[], None], count: int) -> float:
    """Device time of one replay by events, microseconds per call of the `count` that the graph holds."""
    import torch

    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    renew()
    torch.cuda._sleep(AHEAD_CYCLES)  # type: ignore[no-untyped-call]
    begin.record()
    graph.replay()
    end.record()
    end.synchronize()
    return 1e3 * float(begin.elapsed_time(end)) / count


def _hits(loaded: LoadedPackage, variant: str) -> int:
    return sum(row.hits for row in loaded.stats("graphed") if row.variant == variant)
