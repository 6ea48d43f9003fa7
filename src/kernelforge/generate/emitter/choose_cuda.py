"""Schedules for CUDA, best guess first."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from kernelforge.cards.types import Extent, Variant
from kernelforge.generate.emitter.emit_straddle import can_straddle
from kernelforge.generate.emitter.loops import Nest, bound, multiple_of
from kernelforge.generate.emitter.schedule import Schedule
from kernelforge.generate.types import Unforgeable
from kernelforge.operators.types import DTYPE_BYTES

_MOST = 24
_REGISTERS = 64  # floats of a row that a thread may keep
_SHARED_BYTES = {"sm_80": 160 * 1024, "sm_90": 220 * 1024, "sm_100": 220 * 1024}  # of a block
_SHARED_BYTES_ELSEWHERE = 96 * 1024


def cuda_schedules(
    nest: Nest, variant: Variant, weights: Sequence[tuple[Mapping[str, int], float]]
) -> tuple[Schedule, ...]:
    """At most 24 schedules for a nest."""
    dims = weights[0][0] if weights else {d.name: d.high for d in variant.dims}
    if not nest.program.reduced:
        found = _pointwise(nest, variant, dims)
    elif nest.inner is not None:
        found = _columns(nest, variant)
    else:
        found = _rows(nest, variant, dims)
    unique = tuple(dict.fromkeys(found))[:_MOST]
    if not unique:
        raise Unforgeable("no CUDA schedule fits the row")
    return unique


def vectors(nest: Nest, variant: Variant, *, straddle: bool = False) -> tuple[int, ...]:
    """Widths of an access in elements, widest first: 16 bytes of the widest packed tensor, if all bases are aligned.

    Args:
        straddle: an access may reach into the next row.
    """
    packed = [a for a in nest.program.accesses() if a.strides[nest.row] == Extent(1)]
    if not packed:
        return (1,)
    alignments = dict(zip(variant.tensor_names(), (p.alignment for p in variant.tensors), strict=True))
    alignments |= dict(zip(variant.output_names(), (p.alignment for p in variant.outputs), strict=True))
    widest = max(DTYPE_BYTES[a.dtype] for a in packed)
    result = []
    for vector in (8, 4, 2, 1):
        # A row whose length cannot be a multiple of the vector would run the scalar kernel anyway.
        fits = straddle or not (nest.outer or nest.program.reduced) or _can_divide(nest.length, variant, vector)
        if (
            vector * widest <= 16
            and fits
            and all(vector * DTYPE_BYTES[a.dtype] <= alignments[a.tensor] for a in packed)
        ):
            result.append(vector)
    return tuple(result)


def _can_divide(extent: Extent, variant: Variant, vector: int) -> bool:
    return bool(extent.dims) or multiple_of(extent, variant) % vector == 0


def _pointwise(nest: Nest, variant: Variant, dims: Mapping[str, int]) -> Iterable[Schedule]:
    points = nest.points.evaluate(dims)
    widths = vectors(nest, variant)
    big = points >= 1 << 22
    if nest.outer:
        length = nest.length.evaluate(dims)
        if can_straddle(nest):
            yield from _straddling(vectors(nest, variant, straddle=True)[0], bound(nest.length, variant), big=big)
        for vector in widths[:2]:
            yield from _pointwise_rows(vector, length, long_rows=length >= 512 * vector)
        return
    # Few points: spread them over the chip, one vector per thread, rather than keep many accesses in flight.
    unrolls = (4, 2, 1) if big else (1, 2)
    for vector in widths[:2]:
        for unroll in unrolls:
            for threads in (256, 128, 512) if big else (128, 256, 64):
                for streaming in (True, False) if big else (False,):
                    if vector > 1 or not streaming:
                        yield Schedule(
                            mapping="flat", vector=vector, threads=threads, unroll=unroll, streaming=streaming
                        )


def _straddling(vector: int, longest: int, *, big: bool) -> Iterable[Schedule]:
    if 1 < vector <= longest:
        for unroll in (1, 2, 4) if big else (1, 2):
            for threads in (256, 128) if big else (128, 256):
                yield Schedule(mapping="straddle", vector=vector, threads=threads, unroll=unroll)


def _pointwise_rows(vector: int, length: int, *, long_rows: bool) -> Iterable[Schedule]:
    by_row = []
    for threads in (128, 256, 64, 512):
        for unroll in (4, 2, 1):
            chunk = threads * unroll * vector
            # A block whose row leaves more than half of its threads idle is not worth a try.
            if chunk <= 2 * max(length, 32 * vector):
                by_row.append(Schedule(mapping="rows", vector=vector, threads=threads, unroll=unroll))
    by_row.sort(key=lambda s: _waste(length, s.threads * s.unroll * s.vector))
    flat = [Schedule(mapping="flat", vector=vector, threads=threads) for threads in (256, 128, 512)]
    yield from (*by_row[:6], *flat) if long_rows else (*flat, *by_row[:4])


def _waste(length: int, chunk: int) -> float:
    """Share of a row's slots that hold no point, in steps of an eighth so that ties keep their order."""
    slots = -(-length // chunk) * chunk
    return int(8 * (1 - length / max(slots, 1)))


def _rows(nest: Nest, variant: Variant, dims: Mapping[str, int]) -> Iterable[Schedule]:
    length, longest = max(1, nest.length.evaluate(dims)), max(1, bound(nest.length, variant))
    rows = nest.rows.evaluate(dims)
    compute_bytes = 8 if nest.program.compute == "double" else 4
    for vector in vectors(nest, variant)[:3]:
        found = [*_warp_rows(vector, longest, length), *_block_rows(vector, longest, length)]
        # Few rows need many threads each; many rows are better off without barriers.
        found.sort(key=lambda s: _row_cost(s, rows, length))
        yield from found[:8]
    if longest * compute_bytes <= _SHARED_BYTES.get(variant.capability, _SHARED_BYTES_ELSEWHERE):
        for vector in vectors(nest, variant)[:1]:
            for threads in (512, 1024, 256):
                yield Schedule(mapping="block_row", vector=vector, threads=threads, cache="shared", unroll=4)
    for vector in vectors(nest, variant)[:2]:
        for threads in (512, 1024, 256):
            yield Schedule(mapping="block_row", vector=vector, threads=threads, cache="reread", unroll=4)


def _warp_rows(vector: int, longest: int, length: int) -> Iterable[Schedule]:
    for lanes in (32, 16, 8):
        items = -(-longest // (lanes * vector)) * vector
        if items <= _REGISTERS and lanes * vector < 2 * max(length, 8 * vector):
            for threads in (128, 256):
                yield Schedule(mapping="warp_row", vector=vector, threads=threads, lanes=lanes, cache="registers")


def _block_rows(vector: int, longest: int, length: int) -> Iterable[Schedule]:
    for threads in (128, 256, 512, 64, 1024):
        items = -(-longest // (threads * vector)) * vector
        if items <= _REGISTERS // 2 and threads * vector < 2 * max(length, 32 * vector):
            yield Schedule(mapping="block_row", vector=vector, threads=threads, cache="registers")


def _row_cost(schedule: Schedule, rows: int, length: int) -> tuple[int, int, int]:
    lanes = schedule.threads if schedule.mapping == "block_row" else schedule.lanes
    items = -(-length // (lanes * schedule.vector)) * schedule.vector
    # From about 132 multiprocessors of 1,024 threads on, more lanes per row bring no more parallelism.
    crowded = rows * lanes >= 132 * 1024
    return (abs(items - (16 if crowded else schedule.vector)), int(schedule.mapping == "block_row"), schedule.threads)


def _columns(nest: Nest, variant: Variant) -> Iterable[Schedule]:
    longest = bound(nest.length, variant)
    for threads in (256, 128, 64):
        if longest <= 32:
            yield Schedule(mapping="thread_row", threads=threads, cache="registers")
        for unroll in (8, 4):
            yield Schedule(mapping="thread_row", threads=threads, cache="reread", unroll=unroll)
