"""input * other; `other` may be a number."""

from kernelforge.operators._arguments import per_element
from kernelforge.operators._arithmetic import binary_entries, operands
from kernelforge.operators._targets import eager
from kernelforge.operators.types import Operator

OPERATOR = Operator(
    name="mul",
    arguments=("input", "other", "inplace"),
    entries=binary_entries(("mul", "multiply"), dunders=("mul", "rmul"), idunders=("imul",)),
    normalise=operands(commutes=True),
    call=eager("torch.mul", inplace="torch.Tensor.mul_", positional=2),
    flops=per_element(1),
    family="emitter",
)
