"""1 / (1 + exp(-input))."""

from kernelforge.operators._pointwise import PLAIN, unary
from kernelforge.operators.types import Entry

OPERATOR = unary(
    "sigmoid", cost=3, functional=True, extra=(Entry(target="torch.special.expit", parameters="(input)", preset=PLAIN),)
)
