"""1-d convolution."""

from kernelforge.operators._convolution import convolution

OPERATOR = convolution("conv1d", 1)
