"""2-d transposed convolution; weight [in, out / groups, *kernel]."""

from __future__ import annotations

from math import prod

from kernelforge.operators._arguments import Canonical, as_int, concrete_tensor, ints, pick
from kernelforge.operators._products import LEAST_OF_CONVOLUTION
from kernelforge.operators._targets import eager
from kernelforge.operators.types import ConcreteArguments, Entry, Operator, TensorShape

_ARGUMENTS = ("input", "weight", "bias", "stride", "padding", "output_padding", "groups", "dilation")
_PARAMETERS = "weight, bias=None, stride=1, padding=0, output_padding=0, groups=1, dilation=1"


def _normalise(bound: dict[str, object]) -> Canonical:
    for name in ("stride", "padding", "output_padding", "dilation"):
        bound[name] = ints(bound[name], 2)
    bound["groups"] = as_int(bound["groups"])
    return pick(bound, *_ARGUMENTS)


def _flops(arguments: ConcreteArguments, outputs: tuple[TensorShape, ...]) -> int:  # noqa: ARG001 - one signature
    weights = prod(concrete_tensor(arguments, "weight").shape[1:])
    return max(1, 2 * concrete_tensor(arguments, "input").elements * weights)


OPERATOR = Operator(
    name="conv_transpose2d",
    arguments=_ARGUMENTS,
    entries=(
        Entry(target="torch.nn.functional.conv_transpose2d", parameters=f"(input, {_PARAMETERS})"),
        Entry(target="torch.conv_transpose2d", parameters=f"(input, {_PARAMETERS})"),
        Entry(target="torch.ops.aten.conv_transpose2d.input", parameters=f"(input, /, {_PARAMETERS})"),
    ),
    normalise=_normalise,
    call=eager("torch.nn.functional.conv_transpose2d"),
    flops=_flops,
    least_flops=LEAST_OF_CONVOLUTION,
    provider="vendor",
    reduction=True,
)
