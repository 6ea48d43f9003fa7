"""The absolute value."""

from kernelforge.operators._pointwise import PLAIN, unary
from kernelforge.operators.types import Entry

OPERATOR = unary("abs", extra=(Entry(target="torch.Tensor.__abs__", parameters="(input, /)", preset=PLAIN),))
