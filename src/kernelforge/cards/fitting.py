"""Expresses the sizes, strides and varying arguments of several calls by named dims. Pure; owns `fit`.

The calls given must agree in everything but sizes, strides, floats and the integers that may vary. A *vector* is one
position's value in each of the calls, in order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import TypeAlias

from kernelforge.capture.types import Arguments, DimRef, OperatorCall, ScalarRef, TensorSpec, Value
from kernelforge.cards.types import Extent, TensorPattern

Vector: TypeAlias = "tuple[int, ...]"
Order: TypeAlias = "tuple[int, ...]"

_CHANNELS_LAST: dict[int, Order] = {4: (0, 2, 3, 1), 5: (0, 2, 3, 4, 1)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    """How the calls look in terms of dims.

    Attributes:
        dims: the value of each dim in each call, in order of first appearance; scalars likewise.
        free_outputs: some output size follows from no input size.
    """

    tensors: tuple[TensorPattern, ...]
    outputs: tuple[TensorPattern, ...]
    arguments: Arguments
    dims: dict[str, Vector]
    scalars: dict[str, tuple[float, ...]]
    free_outputs: bool


def fit(calls: Sequence[OperatorCall], varying_ints: Sequence[str]) -> Fitted | None:
    """Express the calls by dims; None if some strides follow no rule that they all share."""
    names = _Names(calls)
    inputs = [_size_vectors([c.tensors[i] for c in calls]) for i in range(len(calls[0].tensors))]
    outputs = [_size_vectors([c.outputs[i] for c in calls]) for i in range(len(calls[0].outputs))]
    integers = _integer_vectors(calls, varying_ints)
    names.choose_bases([v for t in inputs for v in t], integers, [v for t in outputs for v in t])
    shapes = [tuple(names.extent(v) for v in t) for t in inputs]
    arguments = tuple(
        (name, names.merge([dict(c.arguments)[name] for c in calls], name in varying_ints))
        for name, _ in calls[0].arguments
    )
    known = len(names.dims)
    output_shapes = [tuple(names.extent(v) for v in t) for t in outputs]
    patterns = [
        _pattern([c.tensors[i] for c in calls], s, names.dims, min(c.tensors[i].alignment for c in calls))
        for i, s in enumerate(shapes)
    ]
    # An output is allocated anew for each call, so its alignment is not the captured one.
    results = [_pattern([c.outputs[i] for c in calls], s, names.dims, 16) for i, s in enumerate(output_shapes)]
    fitted, produced = [p for p in patterns if p], [p for p in results if p]
    if len(fitted) < len(patterns) or len(produced) < len(results):
        return None
    return Fitted(
        tensors=tuple(fitted), outputs=tuple(produced), arguments=arguments, dims=dict(names.dims),
        scalars=dict(names.scalars), free_outputs=len(names.dims) > known,
    )  # fmt: skip


class _Names:
    """Gives names to vectors. Equal vectors share a name; a constant one needs none."""

    def __init__(self, calls: Sequence[OperatorCall]) -> None:
        self.count = len(calls)
        self.dims: dict[str, Vector] = {}
        self.scalars: dict[str, tuple[float, ...]] = {}
        self._bases: dict[Vector, tuple[int, Vector]] = {}
        self._by_vector: dict[Vector, str] = {}

    def choose_bases(self, sizes: Sequence[Vector], integers: Sequence[Vector], outputs: Sequence[Vector]) -> None:
        """Decide which input sizes are multiples of an output size (pooling by 2: the dim is the output's).

        Only where an output size is neither an input size nor a product of such.
        """
        varying = list(dict.fromkeys(v for v in (*sizes, *integers) if not _constant(v)))
        self._bases = {v: (1, v) for v in varying}
        for output in dict.fromkeys(outputs):
            if _constant(output) or output in self._bases or _factors(output, varying):
                continue
            for vector in dict.fromkeys(sizes):
                ratio = _ratio(vector, output)
                if not _constant(vector) and ratio is not None and ratio > 1:
                    self._bases[vector], self._bases[output] = (ratio, output), (1, output)
                    break

    def extent(self, vector: Vector) -> Extent:
        """A size as a constant, a (multiple of a) dim, a product of dims, or a dim of its own."""
        if _constant(vector):
            return Extent(vector[0])
        if vector in self._bases:
            coefficient, base = self._bases[vector]
            return Extent(coefficient, (self._name(base),))
        found = _factors(vector, list(self._by_vector))
        if found:
            coefficient, factors = found
            return Extent(coefficient, tuple(sorted(self._name(f) for f in factors)))
        return Extent(1, (self._name(vector),))

    def merge(self, values: Sequence[Value], varying: bool) -> Value:
        """One argument's value over all calls."""
        first = values[0]
        if isinstance(first, tuple):
            columns = zip(*[v for v in values if isinstance(v, tuple)], strict=True)
            return tuple(self.merge(column, varying) for column in columns)
        if len({repr(v) for v in values}) == 1:
            return first
        if isinstance(first, float):
            return self._scalar(tuple(v for v in values if isinstance(v, float)))
        if varying and isinstance(first, int):
            return DimRef(self._name(tuple(v for v in values if isinstance(v, int))))
        return "varies"  # only of operators that are never forged

    def _name(self, vector: Vector) -> str:
        name = self._by_vector.setdefault(vector, f"n{len(self._by_vector)}")
        self.dims.setdefault(name, vector)
        return name

    def _scalar(self, values: tuple[float, ...]) -> ScalarRef:
        name = f"s{len(self.scalars)}"
        self.scalars[name] = values
        return ScalarRef(name)


def _size_vectors(specs: Sequence[TensorSpec]) -> list[Vector]:
    return [tuple(s.shape[axis] for s in specs) for axis in range(len(specs[0].shape))]


def _integer_vectors(calls: Sequence[OperatorCall], varying_ints: Sequence[str]) -> list[Vector]:
    rows = []
    for call in calls:
        values = [v for name, v in call.arguments if name in varying_ints]
        flat = [item for v in values for item in (v if isinstance(v, tuple) else (v,))]
        rows.append([v for v in flat if isinstance(v, int) and not isinstance(v, bool)])
    return list(zip(*rows, strict=True))


def _constant(vector: Vector) -> bool:
    return len(set(vector)) == 1


def _ratio(vector: Vector, base: Sequence[int]) -> int | None:
    """The integer c with vector = c * base in every call."""
    if 0 in base or vector[0] % base[0]:
        return None
    ratio = vector[0] // base[0]
    return ratio if ratio and all(v == ratio * b for v, b in zip(vector, base, strict=True)) else None


def _factors(vector: Vector, candidates: Sequence[Vector], most: int = 3) -> tuple[int, tuple[Vector, ...]] | None:
    """A constant and the fewest candidates whose product is the vector."""
    for count in range(1, most + 1):
        for chosen in combinations(candidates, count):
            product = [1] * len(vector)
            for factor in chosen:
                product = [p * f for p, f in zip(product, factor, strict=True)]
            ratio = _ratio(vector, product)
            if ratio is not None:
                return ratio, chosen
    return None


def _pattern(
    specs: Sequence[TensorSpec], shape: tuple[Extent, ...], dims: dict[str, Vector], alignment: int
) -> TensorPattern | None:
    strides = _dense(specs, shape) or _strided(specs, shape, dims)
    if strides is None:
        return None
    return TensorPattern(shape=shape, stride=strides, dtype=specs[0].dtype, alignment=alignment)


def _dense(specs: Sequence[TensorSpec], shape: tuple[Extent, ...]) -> tuple[Extent, ...] | None:
    """Strides of a layout without gaps that all calls share: row-major if possible, then channels last, then others."""
    orders = dict.fromkeys(o for s in specs for o in candidate_orders(s))
    ranked = sorted(orders, key=lambda order: (order != tuple(range(len(shape))), order))
    for order in ranked:
        if all(is_dense(s, order) for s in specs):
            return _extents_in_order(shape, order)
    return None


def candidate_orders(spec: TensorSpec) -> list[Order]:
    """Orders of axes, outermost first, in which the tensor may be dense."""
    rank = len(spec.shape)
    orders = [tuple(range(rank))]
    if rank in _CHANNELS_LAST:
        orders.append(_CHANNELS_LAST[rank])
    orders.append(tuple(sorted(range(rank), key=lambda axis: (-spec.stride[axis], axis))))
    return orders


def is_dense(spec: TensorSpec, order: Order) -> bool:
    """Whether the tensor has no gaps when its axes are nested in this order; axes of size 1 do not matter."""
    step = 1
    for axis in reversed(order):
        if spec.shape[axis] != 1 and spec.stride[axis] != step:
            return 0 in spec.shape
        step *= spec.shape[axis]
    return True


def _extents_in_order(shape: tuple[Extent, ...], order: Order) -> tuple[Extent, ...]:
    strides, step = [Extent(1)] * len(shape), Extent(1)
    for axis in reversed(order):
        strides[axis] = step
        step = step.times(shape[axis])
    return tuple(strides)


def _strided(
    specs: Sequence[TensorSpec], shape: tuple[Extent, ...], dims: dict[str, Vector]
) -> tuple[Extent, ...] | None:
    """Strides of a view with gaps: each a constant, or a constant times dims."""
    natural = _extents_in_order(shape, tuple(range(len(shape))))
    strides = []
    for axis in range(len(shape)):
        relevant = [i for i, s in enumerate(specs) if s.shape[axis] != 1 and 0 not in s.shape]
        stride = tuple(specs[i].stride[axis] for i in relevant)
        if not relevant:
            strides.append(natural[axis])
        elif _constant(stride):
            strides.append(Extent(stride[0]))
        else:
            by_vector = {tuple(v[i] for i in relevant): name for name, v in reversed(dims.items())}
            found = _factors(stride, list(by_vector), most=4)
            if found is None:
                return None
            strides.append(Extent(found[0], tuple(sorted(by_vector[f] for f in found[1]))))
    return tuple(strides)
