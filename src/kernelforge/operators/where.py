"""input where condition holds, else other; both may be numbers."""

from __future__ import annotations

from kernelforge.operators._arguments import Canonical, is_number, per_element, scalar_for, tensor
from kernelforge.operators._targets import eager
from kernelforge.operators.types import Entry, Operator, Unsupported


def _normalise(bound: dict[str, object]) -> Canonical:
    tensor(bound["condition"])
    first, second = bound["input"], bound["other"]
    if first is None or second is None:
        return Unsupported(reason="where of a condition alone")
    if is_number(first) and is_number(second):
        return Unsupported(reason="where of two numbers")
    if is_number(first):
        bound["input"] = scalar_for(first, second)
    if is_number(second):
        bound["other"] = scalar_for(second, first)
    return bound


OPERATOR = Operator(
    name="where",
    arguments=("condition", "input", "other"),
    entries=(
        Entry(target="torch.where", parameters="(condition, input=None, other=None)"),
        # Called as input.where(condition, other).
        Entry(target="torch.Tensor.where", parameters="(input, /, condition, other)"),
        Entry(target="torch.ops.aten.where.self", parameters="(condition, input, other, /)"),
    ),
    normalise=_normalise,
    call=eager("torch.where", positional=3),
    flops=per_element(1),
    family="emitter",
)
