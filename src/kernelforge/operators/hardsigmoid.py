"""clamp(input + 3, 0, 6) / 6."""

from kernelforge.operators._pointwise import activation, activation_entries

OPERATOR = activation("hardsigmoid", activation_entries("hardsigmoid"), cost=4)
