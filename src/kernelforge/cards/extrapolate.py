"""Checks a variant's rules on sizes that were not observed, by torch's own shape functions (meta tensors: no data).

That an output size equalled an input size in a few calls does not make it a rule of the operator.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from kernelforge.capture.types import TensorSpec
from kernelforge.cards.bind import to_bound
from kernelforge.cards.types import Dim, DimValues, ScalarValues, Variant
from kernelforge.operators import get_operator

_REFUSALS = (RuntimeError, ValueError, IndexError, TypeError, NotImplementedError, AssertionError)


def settle_ranges(
    variant: Variant, observed: DimValues, scalars: ScalarValues, seen: Mapping[str, tuple[int, int]]
) -> Variant | None:
    """The variant with ranges on whose ends and interior eager has the outputs that the patterns say.

    Args:
        observed: the dims of one captured call; scalars likewise.
        seen: the least and the greatest captured value of each dim.

    Returns:
        None if the rules fail between the captured sizes, that is, if the calls are no variant with named dims.
    """
    if not variant.dims or not _agrees(variant, observed, scalars, strides=False):
        return variant  # nothing to check, or torch cannot tell without data
    strides = _agrees(variant, observed, scalars, strides=True)
    dims = []
    for dim in variant.dims:
        least, most = seen[dim.name]
        low = dim.low if _agrees(variant, {**observed, dim.name: dim.low}, scalars, strides=strides) else least
        high = dim.high if _agrees(variant, {**observed, dim.name: dim.high}, scalars, strides=strides) else most
        dims.append(replace(dim, low=low, high=high))
    settled = replace(variant, dims=tuple(dims))
    if all(_agrees(settled, point, scalars, strides=strides) for point in _interior(settled, observed)):
        return settled
    return None


def _interior(variant: Variant, observed: DimValues) -> Iterator[dict[str, int]]:
    """Each dim alone at an inner value, and all dims at different inner values."""
    together = dict(observed)
    for index, dim in enumerate(variant.dims):
        value = inner_value(dim, index)
        together[dim.name] = value
        yield {**observed, dim.name: value}
    yield together


def inner_value(dim: Dim, index: int) -> int:
    """A value between the ends that differs for different `index`, small enough to keep products small."""
    steps = (dim.high - dim.low) // dim.multiple_of
    first = -(-dim.low // dim.multiple_of) * dim.multiple_of
    return first + min(2 + 3 * index, max(steps - 1, 0)) * dim.multiple_of


def _agrees(variant: Variant, dims: DimValues, scalars: ScalarValues, *, strides: bool) -> bool:
    """Whether eager's outputs at these dims have the shapes, dtypes and (if asked) strides of the patterns."""
    import torch

    specs = [p.spec(dims, variant.device) for p in variant.tensors]
    tensors = [torch.empty_strided(s.shape, s.stride, dtype=getattr(torch, s.dtype), device="meta") for s in specs]
    try:
        result = get_operator(variant.operator).call(to_bound(variant, dims, scalars, tensors))
    except _REFUSALS:
        return False
    outputs = list(result) if isinstance(result, tuple | list) else [result]
    if not variant.outputs:
        return True
    wanted = [p.spec(dims, variant.device) for p in variant.outputs]
    return len(outputs) == len(wanted) and all(
        isinstance(o, torch.Tensor) and _like(o.shape, o.stride(), str(o.dtype), w, strides)
        for o, w in zip(outputs, wanted, strict=True)
    )


def _like(shape: tuple[int, ...], stride: tuple[int, ...], dtype: str, wanted: TensorSpec, strides: bool) -> bool:
    if tuple(shape) != wanted.shape or dtype != f"torch.{wanted.dtype}":
        return False
    if not strides:
        return True
    return all(n == 1 or s == w for n, s, w in zip(shape, stride, wanted.stride, strict=True))
