"""input * clamp(input + 3, 0, 6) / 6."""

from kernelforge.operators._pointwise import activation, activation_entries

OPERATOR = activation("hardswish", activation_entries("hardswish"), cost=5)
