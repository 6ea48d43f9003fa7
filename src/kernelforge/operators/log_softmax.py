"""The logarithm of softmax along one dim."""

from kernelforge.operators._softmax import softmax_operator

OPERATOR = softmax_operator("log_softmax", cost=5)
