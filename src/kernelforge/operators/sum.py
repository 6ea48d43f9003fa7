"""The sum over dims."""

from kernelforge.operators._reductions import reduction

OPERATOR = reduction("sum", overload="dim_IntList")
