"""input where positive, else alpha * (exp(input) - 1)."""

from kernelforge.operators._pointwise import activation, activation_entries

OPERATOR = activation("elu", activation_entries("elu", "alpha=1.0", inplace_function=True), scalars=("alpha",), cost=3)
