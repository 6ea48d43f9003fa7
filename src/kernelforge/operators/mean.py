"""The average over dims."""

from kernelforge.operators._reductions import reduction

OPERATOR = reduction("mean", overload="dim")
