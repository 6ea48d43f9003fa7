"""The least time that moving a variant's bytes can take. Pure.

Every output byte is written once; inputs are read once, or as the operator's own formula says. The bandwidth is an
upper bound at the working set's level of memory, so the floor is a lower bound on any honest time.
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


def floor_us(variant: Variant, dims: DimValues, scalars: ScalarValues, *, bytes_per_second: float) -> float:
    """The roofline floor, microseconds."""
    return traffic_bytes(variant, dims, scalars) / bytes_per_second * 1e6


def flops(variant: Variant, dims: DimValues, scalars: ScalarValues) -> int:
    """Floating-point operations at given sizes; beside the floor in reports, not part of it."""
    return get_operator(variant.operator).flops(concrete(variant, dims, scalars), output_shapes(variant, dims))


def _written(variant: Variant, dims: DimValues) -> int:
    changed = [variant.tensors[i] for i in variant.mutates]
    shapes = [TensorShape(shape=p.spec(dims, variant.device).shape, dtype=p.dtype) for p in changed]
    return sum(s.size_bytes for s in (*shapes, *output_shapes(variant, dims)))
