"""2-d convolution."""

from kernelforge.operators._convolution import convolution

OPERATOR = convolution("conv2d", 2)
