"""e to the power of input."""

from kernelforge.operators._pointwise import unary

OPERATOR = unary("exp")
