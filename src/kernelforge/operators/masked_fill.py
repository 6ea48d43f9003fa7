"""input, but `value` where mask holds."""

from __future__ import annotations

from kernelforge.operators._arguments import Canonical, per_element, scalar_for, tensor
from kernelforge.operators._pointwise import INPLACE, PLAIN
from kernelforge.operators._targets import eager
from kernelforge.operators.types import Entry, Operator


def _normalise(bound: dict[str, object]) -> Canonical:
    tensor(bound["mask"])
    bound["value"] = scalar_for(bound["value"], bound["input"])
    return bound


OPERATOR = Operator(
    name="masked_fill",
    arguments=("input", "mask", "value", "inplace"),
    entries=(
        Entry(target="torch.masked_fill", parameters="(input, mask, value)", preset=PLAIN),
        Entry(target="torch.Tensor.masked_fill", parameters="(input, /, mask, value)", preset=PLAIN),
        Entry(target="torch.Tensor.masked_fill_", parameters="(input, /, mask, value)", preset=INPLACE),
        Entry(target="torch.ops.aten.masked_fill.Scalar", parameters="(input, /, mask, value)", preset=PLAIN),
        Entry(target="torch.ops.aten.masked_fill.Tensor", parameters="(input, /, mask, value)", preset=PLAIN),
    ),
    normalise=_normalise,
    call=eager("torch.masked_fill", inplace="torch.Tensor.masked_fill_"),
    flops=per_element(1),
    family="emitter",
)
