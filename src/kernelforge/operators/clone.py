"""A copy."""

from kernelforge.operators._copies import copy_operator

OPERATOR = copy_operator("clone", "preserve_format")
