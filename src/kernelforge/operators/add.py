"""input + alpha * other; `other` may be a number."""

from kernelforge.operators._arguments import per_element
from kernelforge.operators._arithmetic import binary_entries, operands
from kernelforge.operators._targets import eager
from kernelforge.operators.types import Operator

OPERATOR = Operator(
    name="add",
    arguments=("input", "other", "alpha", "inplace"),
    entries=binary_entries(("add",), dunders=("add", "radd"), idunders=("iadd",), options=", *, alpha=1"),
    normalise=operands(commutes=True, alpha=True),
    call=eager("torch.add", inplace="torch.Tensor.add_", positional=2),
    flops=per_element(1),
    family="emitter",
)
