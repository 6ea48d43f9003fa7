"""-input."""

from kernelforge.operators._pointwise import PLAIN, unary
from kernelforge.operators.types import Entry

OPERATOR = unary("neg", extra=(Entry(target="torch.Tensor.__neg__", parameters="(input, /)", preset=PLAIN),))
