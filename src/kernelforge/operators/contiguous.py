"""A copy with row-major (or channels-last) strides. A tensor that has them already is returned as it is: not forged."""

from kernelforge.operators._copies import copy_operator

OPERATOR = copy_operator("contiguous", "contiguous_format")
