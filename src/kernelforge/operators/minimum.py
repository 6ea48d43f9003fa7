"""The smaller of input and other, element by element."""

from kernelforge.operators._arguments import accept, per_element
from kernelforge.operators._targets import eager
from kernelforge.operators.types import Entry, Operator

OPERATOR = Operator(
    name="minimum",
    arguments=("input", "other"),
    entries=(
        Entry(target="torch.minimum", parameters="(input, other)"),
        Entry(target="torch.Tensor.minimum", parameters="(input, /, other)"),
        Entry(target="torch.ops.aten.minimum.default", parameters="(input, other, /)"),
    ),
    normalise=accept,
    call=eager("torch.minimum", positional=2),
    flops=per_element(1),
    family="emitter",
)
