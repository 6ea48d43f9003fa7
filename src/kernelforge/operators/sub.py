"""input - alpha * other; either may be a number."""

from __future__ import annotations

from kernelforge.operators._arguments import is_number, per_element
from kernelforge.operators._arithmetic import binary_entries, operands
from kernelforge.operators._pointwise import PLAIN
from kernelforge.operators._targets import eager
from kernelforge.operators.types import Bound, Entry, Operator

_forward = eager("torch.sub", inplace="torch.Tensor.sub_", positional=2)
_reversed = eager("torch.rsub", positional=2)


def _call(arguments: Bound) -> object:
    if is_number(arguments["input"]):
        swapped = {"other": arguments["other"], "input": arguments["input"], "alpha": arguments["alpha"]}
        return _reversed(swapped)
    return _forward(arguments)


OPERATOR = Operator(
    name="sub",
    arguments=("input", "other", "alpha", "inplace"),
    entries=(
        *binary_entries(("sub", "subtract"), dunders=("sub",), idunders=("isub",), options=", *, alpha=1"),
        Entry(target="torch.rsub", parameters="(other, input, /, *, alpha=1)", preset=PLAIN),
        Entry(target="torch.Tensor.__rsub__", parameters="(other, input, /)", preset=PLAIN),
    ),
    normalise=operands(commutes=False, alpha=True),
    call=_call,
    flops=per_element(1),
    family="emitter",
)
