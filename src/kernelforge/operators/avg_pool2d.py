"""Mean over windows of the last two dims."""

from __future__ import annotations

from math import prod

from kernelforge.operators._arguments import Canonical, concrete_ints, pick
from kernelforge.operators._targets import eager
from kernelforge.operators._windows import touched_bytes, window
from kernelforge.operators.types import ConcreteArguments, Entry, Operator, TensorShape

_ARGUMENTS = ("input", "kernel_size", "stride", "padding", "ceil_mode", "count_include_pad", "divisor_override")
_TAIL = "kernel_size, stride=None, padding=0, ceil_mode=False, count_include_pad=True, divisor_override=None"


def _normalise(bound: dict[str, object]) -> Canonical:
    window(bound, 2, "kernel_size", "padding")
    for name in ("ceil_mode", "count_include_pad"):
        bound[name] = bool(bound[name])
    return pick(bound, *_ARGUMENTS)


def _flops(arguments: ConcreteArguments, outputs: tuple[TensorShape, ...]) -> int:
    return max(1, outputs[0].elements * prod(concrete_ints(arguments, "kernel_size")))


OPERATOR = Operator(
    name="avg_pool2d",
    arguments=_ARGUMENTS,
    entries=(
        Entry(target="torch.nn.functional.avg_pool2d", parameters=f"(input, {_TAIL})"),
        Entry(target="torch.ops.aten.avg_pool2d.default", parameters=f"(input, /, {_TAIL})"),
    ),
    normalise=_normalise,
    call=eager("torch.nn.functional.avg_pool2d"),
    flops=_flops,
    bytes_read=lambda arguments: touched_bytes(arguments, concrete_ints(arguments, "kernel_size")),
    family="pool",
    reduction=True,
)
