"""The error function."""

from kernelforge.operators._pointwise import unary

OPERATOR = unary("erf")
