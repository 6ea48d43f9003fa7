"""The least time that a variant's bytes, arithmetic and launch can take. Pure.

Every output byte is written once; inputs are read once, or as the operator's own formula says. Of the arithmetic only
what the fastest known algorithm needs counts, and of it only products and convolutions: elsewhere bytes take longer.
Bandwidth (at the working set's level of memory) and peak are upper bounds, so the floor is a lower bound on any honest
time.
"""

from __future__ import annotations

from kernelforge.cards.bind import concrete, output_shapes
from kernelforge.cards.types import DimValues, ScalarValues, Variant
from kernelforge.operators import TensorShape, get_operator

SUSPECT_FRACTION = 0.7
"""Below this fraction of the floor a time is not believed: bandwidths are measured, not known."""


def traffic_bytes(variant: Variant, dims: DimValues, scalars: ScalarValues) -> int:
    """Bytes that any kernel for the variant must read and write at given sizes."""
    operator = get_operator(variant.operator)
    if operator.bytes_read is not None:
        read = operator.bytes_read(concrete(variant, dims, scalars))
    else:
        # A stride of 0 repeats memory: what must be read is the storage, not the shape.
        specs = [p.spec(dims, variant.device) for p in variant.tensors]
        read = sum(min(s.storage_bytes, s.concrete.size_bytes) for s in specs)
    return read + _written(variant, dims)


def floor_us(
    variant: Variant, dims: DimValues, scalars: ScalarValues, *, bytes_per_second: float,
    flops_per_second: float = 0.0, launch_us: float = 0.0,
) -> float:  # fmt: skip
    """The roofline floor, microseconds.

    Args:
        flops_per_second: peak for the variant's dtype, or 0.0 if unknown. launch_us: least time of any call.
    """
    seconds = traffic_bytes(variant, dims, scalars) / bytes_per_second
    least = get_operator(variant.operator).least_flops
    if least > 0 and flops_per_second > 0:
        seconds = max(seconds, least * flops(variant, dims, scalars) / flops_per_second)
    return max(seconds * 1e6, launch_us)


def flops(variant: Variant, dims: DimValues, scalars: ScalarValues) -> int:
    """Floating-point operations of the plain algorithm at given sizes."""
    return get_operator(variant.operator).flops(concrete(variant, dims, scalars), output_shapes(variant, dims))


def _written(variant: Variant, dims: DimValues) -> int:
    changed = [variant.tensors[i] for i in variant.mutates]
    shapes = [TensorShape(shape=p.spec(dims, variant.device).shape, dtype=p.dtype) for p in changed]
    return sum(s.size_bytes for s in (*shapes, *output_shapes(variant, dims)))
