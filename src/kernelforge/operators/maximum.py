"""The larger of input and other, element by element."""

from kernelforge.operators._arguments import accept, per_element
from kernelforge.operators._targets import eager
from kernelforge.operators.types import Entry, Operator

OPERATOR = Operator(
    name="maximum",
    arguments=("input", "other"),
    entries=(
        Entry(target="torch.maximum", parameters="(input, other)"),
        Entry(target="torch.Tensor.maximum", parameters="(input, /, other)"),
        Entry(target="torch.ops.aten.maximum.default", parameters="(input, other, /)"),
    ),
    normalise=accept,
    call=eager("torch.maximum", positional=2),
    flops=per_element(1),
    family="emitter",
)
