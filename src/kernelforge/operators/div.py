"""input / other, rounded as `rounding_mode` says (None, "floor", "trunc"); either may be a number.

A number on the left stands for torch's `number / tensor`, which is reciprocal(tensor) * number.
"""

from __future__ import annotations

from kernelforge.operators._arguments import Canonical, as_float, is_number, per_element, tensor
from kernelforge.operators._arithmetic import binary_entries, operands
from kernelforge.operators._pointwise import PLAIN
from kernelforge.operators._targets import eager
from kernelforge.operators.types import Bound, Entry, Operator, Unsupported

_forward = eager("torch.div", inplace="torch.Tensor.div_", positional=2)
_operands = operands(commutes=False)


def _normalise(bound: dict[str, object]) -> Canonical:
    bound.setdefault("rounding_mode", None)
    if is_number(bound["input"]) and not bound.pop("reflected", False):
        return Unsupported(reason="torch.div of a number by a tensor, which rounds otherwise than number / tensor")
    return _operands(bound)


def _call(arguments: Bound) -> object:
    if is_number(arguments["input"]):
        return tensor(arguments["other"]).reciprocal() * as_float(arguments["input"])
    return _forward(arguments)


_REFLECTED = {**PLAIN, "reflected": True}

OPERATOR = Operator(
    name="div",
    arguments=("input", "other", "rounding_mode", "inplace"),
    entries=(
        *binary_entries(
            ("div", "divide"),
            dunders=("truediv", "div"),
            idunders=("itruediv", "idiv"),
            options=", *, rounding_mode=None",
        ),
        *binary_entries(("true_divide",)),
        Entry(target="torch.Tensor.__rtruediv__", parameters="(other, input, /)", preset=_REFLECTED),
        Entry(target="torch.Tensor.__rdiv__", parameters="(other, input, /)", preset=_REFLECTED),
    ),
    normalise=_normalise,
    call=_call,
    flops=per_element(1),
    family="emitter",
)
