"""Normal form of a program's space: axes sorted by memory order, merged, and split into outer, row and inner axes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial

from kernelforge.cards.types import Extent, Variant
from kernelforge.generate.emitter.ir import Axis, Program
from kernelforge.generate.types import Unforgeable

_ZERO, _ONE = Extent(0), Extent(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Nest:
    """A program whose axes are [outer..., row, inner]; `row` is the reduced axis, or the last of a pointwise program.

    Attributes:
        outer: axes before the row, flattened into one index `row` of the source.
        inner: the axis behind a reduced axis that is not last in memory, or None.
        names: the variant's dims.
        wide: some access may need 64-bit offsets.
    """

    program: Program
    outer: tuple[int, ...]
    row: int
    inner: int | None
    wide: bool

    @property
    def rows(self) -> Extent:
        """How many rows there are, inner axis not counted."""
        return product(self.program.axes[a].size for a in self.outer)

    @property
    def length(self) -> Extent:
        return self.program.axes[self.row].size

    @property
    def points(self) -> Extent:
        return product(axis.size for axis in self.program.axes)

    @property
    def row_varying(self) -> tuple[bool, ...]:
        """For each value, whether it changes along the row (or the inner axis)."""
        return self.program.varies((self.row,))


def product(extents: Iterable[Extent]) -> Extent:
    """The product of extents."""
    result = Extent(1)
    for extent in extents:
        result = result.times(extent)
    return result


def nest(program: Program, variant: Variant) -> Nest:
    """Bring a program to its normal form.

    Raises:
        Unforgeable: the reduced axes do not form one run in memory.
    """
    program = _merged(_sorted(_without_unit_axes(program), {d.name: d.high for d in variant.dims}))
    reduced = [i for i, axis in enumerate(program.axes) if axis.reduced]
    last = len(program.axes) - 1
    row = reduced[0] if reduced else last
    if len(reduced) > 1 or last - row > 1:
        raise Unforgeable("the reduced axes, or those behind them, are not one run in memory")
    return Nest(
        program=program, outer=tuple(range(row)), row=row, inner=last if last > row else None, wide=_is_wide(variant)
    )


def multiple_of(extent: Extent, variant: Variant) -> int:
    """A number that divides the extent for all admitted dims."""
    multiples = {d.name: d.multiple_of for d in variant.dims}
    result = extent.coefficient
    for name in extent.dims:
        result *= multiples[name]
    return result


def bound(extent: Extent, variant: Variant) -> int:
    """The largest value of an extent over all admitted dims."""
    return extent.evaluate({d.name: d.high for d in variant.dims})


def _without_unit_axes(program: Program) -> Program:
    kept = [i for i, axis in enumerate(program.axes) if axis.size != _ONE]
    if program.reduced and not any(program.axes[i].reduced for i in kept):
        # A reduction over an axis of size 1 still is one; keep it, so that the emitters see a row.
        kept = sorted([*kept, next(i for i, axis in enumerate(program.axes) if axis.reduced)])
    if not kept:
        one = Axis(size=_ONE)
        return program.with_strides((one,), lambda _: (_ZERO,))
    return _select(program, kept)


def _select(program: Program, order: list[int]) -> Program:
    return program.with_strides(tuple(program.axes[i] for i in order), lambda strides: tuple(strides[i] for i in order))


def _sorted(program: Program, dims: Mapping[str, int]) -> Program:
    """Axes from the outermost to the innermost in memory, by the access that varies along most of them."""

    def coverage(strides: tuple[Extent, ...]) -> int:
        return sum(s != _ZERO for s in strides)

    stores = [s.strides for s in program.stores]
    guide = max([*stores, *(load.strides for load in program.loads())], key=coverage)
    order = sorted(range(len(program.axes)), key=lambda i: -guide[i].evaluate(dims) if guide[i] != _ZERO else 0)
    # Axes along which the guide does not move go outermost, so that the row stays contiguous.
    order = [i for i in order if guide[i] == _ZERO] + [i for i in order if guide[i] != _ZERO]
    return _select(program, order)


def _merged(program: Program) -> Program:
    axis = 0
    while axis + 1 < len(program.axes):
        outer, inner = program.axes[axis], program.axes[axis + 1]
        fits = outer.reduced == inner.reduced and all(
            _continues(access.strides, axis, inner.size) for access in program.accesses()
        )
        if not fits:
            axis += 1
            continue
        joint = Axis(size=outer.size.times(inner.size), reduced=outer.reduced)
        axes = (*program.axes[:axis], joint, *program.axes[axis + 2 :])
        program = program.with_strides(axes, partial(_without, axis))
        axis = 0
    return program


def _without(axis: int, strides: tuple[Extent, ...]) -> tuple[Extent, ...]:
    return (*strides[:axis], *strides[axis + 1 :])


def _continues(strides: tuple[Extent, ...], axis: int, inner_size: Extent) -> bool:
    """Whether a step along an axis is a whole run along the next one, or neither moves."""
    inner = strides[axis + 1]
    return strides[axis] == (inner.times(inner_size) if inner != _ZERO else _ZERO)


def _is_wide(variant: Variant) -> bool:
    """32-bit offsets suffice if no tensor has 2**31 elements and each is dense, in whatever order of axes."""
    patterns = (*variant.tensors, *variant.outputs)
    if variant.max_elements >= 2**31:
        return True
    highs = {d.name: d.high for d in variant.dims}
    for pattern in patterns:
        if pattern.is_contiguous:
            continue
        pairs = [(s, n) for s, n in zip(pattern.stride, pattern.shape, strict=True) if n != _ONE and s != _ZERO]
        step = _ONE
        for stride, size in sorted(pairs, key=lambda pair: pair[0].evaluate(highs)):
            if stride != step:
                return True
            step = step.times(size)
    return False
