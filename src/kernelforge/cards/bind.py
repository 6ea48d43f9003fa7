"""A variant's arguments at given dims: with real tensors (`to_bound`), or with shapes only (`concrete`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kernelforge.capture.types import DimRef, DtypeRef, ScalarRef, TensorRef, Value
from kernelforge.cards.types import DimValues, ScalarValues, Variant
from kernelforge.operators import Concrete, TensorShape
from kernelforge.operators.types import ConcreteArguments


def to_bound(variant: Variant, dims: DimValues, scalars: ScalarValues, tensors: Sequence[object]) -> dict[str, object]:
    """The operator's canonical bound arguments, ready for `Operator.call`.

    Args:
        tensors: one per `variant.tensors`, in that order (torch tensors of any device, meta too).
    """
    import torch

    def leaf(value: Value) -> object:
        # Compiled calls are bound in the graph, and the compiler of torch 2.10 knows no `match` on classes.
        if isinstance(value, TensorRef):
            return tensors[value.index]
        if isinstance(value, DtypeRef):
            return getattr(torch, value.name)
        if isinstance(value, DimRef):
            return dims[value.name]
        return scalars[value.name] if isinstance(value, ScalarRef) else value

    return {name: _map(value, leaf) for name, value in variant.arguments}


def concrete(variant: Variant, dims: DimValues, scalars: ScalarValues) -> ConcreteArguments:
    """The canonical arguments with a `TensorShape` for each tensor, for traffic formulas."""
    shapes = tuple(TensorShape(shape=p.spec(dims, variant.device).shape, dtype=p.dtype) for p in variant.tensors)

    def leaf(value: Value) -> Concrete:
        match value:
            case TensorRef(index):
                return shapes[index]
            case DtypeRef(name):
                return name
            case DimRef(name):
                return dims[name]
            case ScalarRef(name):
                return scalars[name]
            case tuple():
                raise AssertionError("tuples are mapped item by item")
            case _:
                return value

    def convert(value: Value) -> Concrete:
        return tuple(convert(v) for v in value) if isinstance(value, tuple) else leaf(value)

    return {name: convert(value) for name, value in variant.arguments}


def output_shapes(variant: Variant, dims: DimValues) -> tuple[TensorShape, ...]:
    """Shape and dtype of each output at given dims."""
    return tuple(TensorShape(shape=p.spec(dims, variant.device).shape, dtype=p.dtype) for p in variant.outputs)


def _map(value: Value, leaf: Callable[[Value], object]) -> object:
    if isinstance(value, tuple):
        return tuple(_map(item, leaf) for item in value)
    return leaf(value)
