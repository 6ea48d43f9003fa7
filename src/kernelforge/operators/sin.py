"""The sine of input in radians."""

from kernelforge.operators._pointwise import unary

OPERATOR = unary("sin")
