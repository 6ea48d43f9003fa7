"""input * tanh(softplus(input))."""

from kernelforge.operators._pointwise import activation, activation_entries

OPERATOR = activation("mish", activation_entries("mish"), cost=5)
