"""Times an entry of a package in compiled code, against what Inductor makes of the same call without the kernel.

One call of the operator is compiled twice, alone. That costs seconds for each size, and says what the kernel is worth
as a node of a graph; a graph in which Inductor would have joined the operator with its neighbours may be faster without
it, which only the whole model tells (`kforge cast run --modes compiled`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from kernelforge.benchmark.slot import timing_slot
from kernelforge.cards.examples import ExampleStore
from kernelforge.cards.types import SizePoint, VariantRecord
from kernelforge.certification import (
    BLOCK_S,
    DispatchedPoint,
    DispatchTiming,
    Samples,
    in_turn,
    timed_points,
    wrong_output,
)
from kernelforge.errors import ForgeError
from kernelforge.settings import Settings
from kernelforge.timing_inputs import FreshInputs, inputs_of, under_autocast

if TYPE_CHECKING:
    from torch import Tensor

    from kernelforge.dispatch.compiled import CompiledPair
    from kernelforge.dispatch.loading import LoadedPackage

MOST_CALLS = 500
WARM_UP_CALLS = 3


def time_compiled(
    loaded: LoadedPackage,
    record: VariantRecord,
    examples: ExampleStore,
    settings: Settings,
    *,
    budget_s: float = 1.0,
) -> DispatchTiming | str:
    """Time the calls of one variant in compiled code, or say why that cannot be done: it is no fault of the kernel's.

    All compiled code of this process is forgotten: Dynamo keeps only a few versions of one function.

    Args:
        budget_s: bounds the timing of all points, compilation apart.

    Raises:
        DeviceBusy: another process times on the device for too long.
    """
    import torch

    points = []
    try:
        for point, calls, seconds in timed_points(record, budget_s):
            try:
                timed = _time_point(loaded, record, point, examples, settings, calls=calls, budget_s=seconds)
            finally:
                torch._dynamo.reset()
            if not isinstance(timed, DispatchedPoint):
                return timed
            points.append(timed)
    except (RuntimeError, OSError, ImportError, ForgeError) as error:
        # Dynamo's and Inductor's errors are RuntimeErrors; without a compiler, or Triton, they are of the other kinds.
        text = str(error).strip() or type(error).__name__
        return f"does not compile: {text.splitlines()[0]}"
    return DispatchTiming(points=tuple(points))


def _time_point(
    loaded: LoadedPackage, record: VariantRecord, point: SizePoint, examples: ExampleStore, settings: Settings, *,
    calls: int, budget_s: float,
) -> DispatchedPoint | DispatchTiming | str:  # fmt: skip
    """One point; or a timing of nothing, if an output is wrong; or why the times would not be the kernel's."""
    import torch

    from kernelforge.dispatch.compiled import compiled_pair

    variant = record.variant
    pair = compiled_pair(loaded, variant, point.dims, point.scalars)
    if isinstance(pair, str):
        return pair

    def compiled(_: SizePoint, inputs: Sequence[Tensor]) -> Sequence[Tensor]:
        # The same state of torch as when it is timed, so that it is compiled once.
        with torch.inference_mode(mode=False), torch.no_grad():
            return (pair.fast(*inputs),)

    with torch.no_grad(), under_autocast(variant):
        wrong = wrong_output(record, compiled, at=point)
        if wrong:
            return DispatchTiming(points=(), wrong=f"in compiled code: {wrong}")
        if pair.hits == 0:
            return "compiled code did not call the kernel"
        fresh = FreshInputs(inputs_of(record, point, examples))
        with timing_slot(settings, variant.device):
            plain_us, fast_us = _alternate(pair, fresh, variant.device, budget_s)
    return DispatchedPoint(dims=point.dims, calls=calls, eager_us=plain_us, dispatched_us=fast_us)


def _alternate(pair: CompiledPair, fresh: FreshInputs, device: str, budget_s: float) -> Samples:
    """Blocks without and with the kernel in ABBA order, until the time is up; microseconds per call of each."""
    import torch

    def block(function: Callable[..., Tensor], count: int) -> float:
        fresh.renew(count)
        chosen = fresh.sets[:count]
        if device == "cuda":
            torch.cuda.synchronize()
        started = time.perf_counter()
        for inputs in chosen:
            function(*inputs)
        if device == "cuda":
            torch.cuda.synchronize()
        return (time.perf_counter() - started) / count * 1e6

    for function in (pair.plain, pair.fast):
        for _ in range(WARM_UP_CALLS):
            one_us = block(function, 1)
    count = max(1, min(len(fresh.sets), MOST_CALLS, int(BLOCK_S * 1e6 / max(one_us, 0.5))))
    return in_turn(lambda: block(pair.plain, count), lambda: block(pair.fast, count), budget_s)
