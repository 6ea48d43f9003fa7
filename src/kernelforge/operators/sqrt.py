"""The square root."""

from kernelforge.operators._pointwise import unary
from kernelforge.operators.types import Domain

OPERATOR = unary("sqrt", domain=Domain(kind="positive"))
