"""exp(input) normalised to sum 1 along one dim."""

from kernelforge.operators._softmax import softmax_operator

OPERATOR = softmax_operator("softmax", cost=5)
