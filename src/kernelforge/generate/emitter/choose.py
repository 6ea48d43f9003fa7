"""Which schedules are tried for a nest, best guess first. Guesses come from sizes alone; measuring decides."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product

from kernelforge.cards.types import Extent, Variant
from kernelforge.generate.emitter.expressions import Backend
from kernelforge.generate.emitter.loops import Nest, bound
from kernelforge.generate.emitter.schedule import Cache, Schedule
from kernelforge.generate.emitter.stages import keeps_loads, passes

Weights = Sequence[tuple[Mapping[str, int], float]]
_BUFFER_ELEMENTS = 16384  # of a row kept on the stack: 64 KiB of floats, well inside L2
_SMALL = 1 << 16


def typical(extent: Extent, variant: Variant, weights: Weights) -> int:
    """The extent at the most important observed sizes, or at the high ends where nothing was observed."""
    return extent.evaluate(weights[0][0]) if weights else bound(extent, variant)


def schedules(nest: Nest, variant: Variant, backend: Backend, weights: Weights = ()) -> tuple[Schedule, ...]:
    """At most 24 schedules, best guess first."""
    if backend == "cuda":
        from kernelforge.generate.emitter.choose_cuda import cuda_schedules

        return cuda_schedules(nest, variant, weights)
    return _cpp_schedules(nest, variant, weights)


def _cpp_schedules(nest: Nest, variant: Variant, weights: Weights) -> tuple[Schedule, ...]:
    # Sharing out a loop costs a few microseconds: worth it from about 32k cheap points on.
    grains = (1 << 15, 1 << 13, 1 << 17)
    program = nest.program
    if not program.reduced:
        mapping = "rows" if nest.outer else "flat"
        return tuple(Schedule(mapping=mapping, grain=g) for g in grains)  # type: ignore[arg-type]
    if nest.inner is not None:
        columns = typical(program.axes[nest.inner].size, variant, weights)
        tiles = [t for t in (64, 32, 128, 256, 16) if t <= max(16, columns)]
        caches: list[Cache] = ["output", "reread"] if _output_can_keep(nest, variant) else ["reread"]
        return tuple(
            Schedule(mapping="tile", vector=t, cache=c, grain=g) for g, c, t in product(grains[:2], caches, tiles)
        )
    return tuple(Schedule(mapping="rows", cache=c, grain=g) for g, c in product(grains, _row_caches(nest, variant)))


def _row_caches(nest: Nest, variant: Variant) -> list[Cache]:
    caches: list[Cache] = []
    if not any(step.keeps for step in passes(nest, keep_loads=keeps_loads(nest))):
        return ["reread"]
    if _output_can_keep(nest, variant):
        caches.append("output")
    if bound(nest.length, variant) <= _BUFFER_ELEMENTS:
        caches.append("buffer")
    return [*caches, "reread"]


def _output_can_keep(nest: Nest, variant: Variant) -> bool:
    """The output holds intermediate values of the row if it has the accumulation type and a place per point."""
    stores = nest.program.stores
    wide = "float32" if nest.program.compute == "float" else "float64"
    everywhere = all(s != Extent(0) for s in stores[0].strides)
    return len(stores) == 1 and not variant.mutates and stores[0].dtype == wide and everywhere
