"""input * input."""

from kernelforge.operators._pointwise import unary

OPERATOR = unary("square")
