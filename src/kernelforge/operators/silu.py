"""input * sigmoid(input)."""

from kernelforge.operators._pointwise import activation, activation_entries

OPERATOR = activation("silu", activation_entries("silu"), cost=4)
