"""The hyperbolic tangent."""

from kernelforge.operators._pointwise import unary

OPERATOR = unary("tanh", functional=True)
