"""The natural logarithm."""

from kernelforge.operators._pointwise import unary
from kernelforge.operators.types import Domain

OPERATOR = unary("log", domain=Domain(kind="positive"))
