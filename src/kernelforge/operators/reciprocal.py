"""1 / input."""

from kernelforge.operators._pointwise import unary

OPERATOR = unary("reciprocal")
