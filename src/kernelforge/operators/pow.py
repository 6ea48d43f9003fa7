"""input to the power of exponent; either may be a number. A whole exponent is an integer, so x ** 2 is x ** 2.0."""

from __future__ import annotations

from kernelforge.operators._arguments import Canonical, is_floating, is_number, per_element, scalar_for, tensor
from kernelforge.operators._pointwise import INPLACE, PLAIN
from kernelforge.operators._targets import eager
from kernelforge.operators.types import Entry, Operator


def _normalise(bound: dict[str, object]) -> Canonical:
    base, exponent = bound["input"], bound["exponent"]
    if is_number(base):
        bound["input"] = scalar_for(base, exponent)
    elif is_number(exponent):
        whole = isinstance(exponent, int | float) and float(exponent).is_integer() and is_floating(base)
        bound["exponent"] = int(exponent) if whole and isinstance(exponent, int | float) else exponent
    else:
        tensor(base)
        tensor(exponent)
    return bound


OPERATOR = Operator(
    name="pow",
    arguments=("input", "exponent", "inplace"),
    entries=(
        Entry(target="torch.pow", parameters="(input, exponent)", preset=PLAIN),
        Entry(target="torch.Tensor.pow", parameters="(input, /, exponent)", preset=PLAIN),
        Entry(target="torch.Tensor.pow_", parameters="(input, /, exponent)", preset=INPLACE),
        Entry(target="torch.Tensor.__pow__", parameters="(input, exponent, /)", preset=PLAIN),
        Entry(target="torch.Tensor.__rpow__", parameters="(exponent, input, /)", preset=PLAIN),
        Entry(target="torch.Tensor.__ipow__", parameters="(input, exponent, /)", preset=INPLACE),
        Entry(target="torch.ops.aten.pow.Tensor_Scalar", parameters="(input, exponent, /)", preset=PLAIN),
        Entry(target="torch.ops.aten.pow.Tensor_Tensor", parameters="(input, exponent, /)", preset=PLAIN),
        Entry(target="torch.ops.aten.pow.Scalar", parameters="(input, exponent, /)", preset=PLAIN),
    ),
    normalise=_normalise,
    call=eager("torch.pow", inplace="torch.Tensor.pow_", positional=2),
    flops=per_element(1),
    family="emitter",
)
