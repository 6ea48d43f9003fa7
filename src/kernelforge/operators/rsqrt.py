"""1 / sqrt(input)."""

from kernelforge.operators._pointwise import unary
from kernelforge.operators.types import Domain

OPERATOR = unary("rsqrt", cost=2, domain=Domain(kind="positive"))
