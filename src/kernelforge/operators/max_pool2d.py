"""Maximum over windows of the last two dims. Returning the indices too is not forged."""

from __future__ import annotations

from math import prod

from kernelforge.operators._arguments import Canonical, concrete_ints, pick
from kernelforge.operators._targets import eager
from kernelforge.operators._windows import touched_bytes, window
from kernelforge.operators.types import ConcreteArguments, Entry, Operator, TensorShape, Unsupported

_ARGUMENTS = ("input", "kernel_size", "stride", "padding", "dilation", "ceil_mode")
_TAIL = "kernel_size, stride=None, padding=0, dilation=1, ceil_mode=False"


def _normalise(bound: dict[str, object]) -> Canonical:
    if bound.get("return_indices"):
        return Unsupported(reason="return_indices")
    window(bound, 2, "kernel_size", "padding", "dilation")
    bound["ceil_mode"] = bool(bound["ceil_mode"])
    return pick(bound, *_ARGUMENTS)


def _flops(arguments: ConcreteArguments, outputs: tuple[TensorShape, ...]) -> int:
    return max(1, outputs[0].elements * prod(concrete_ints(arguments, "kernel_size")))


OPERATOR = Operator(
    name="max_pool2d",
    arguments=_ARGUMENTS,
    entries=(
        Entry(target="torch.nn.functional.max_pool2d", parameters=f"(input, {_TAIL}, return_indices=False)"),
        Entry(
            target="torch.nn.functional.max_pool2d_with_indices",
            parameters=f"(input, {_TAIL}, return_indices=True)",
            preset={"return_indices": True},
        ),
        Entry(target="torch.max_pool2d", parameters=f"(input, {_TAIL})"),
        Entry(target="torch.ops.aten.max_pool2d.default", parameters=f"(input, /, {_TAIL})"),
    ),
    normalise=_normalise,
    call=eager("torch.max_pool2d"),
    flops=_flops,
    bytes_read=lambda arguments: touched_bytes(arguments, concrete_ints(arguments, "kernel_size")),
    family="pool",
)
