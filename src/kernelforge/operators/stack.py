"""Tensors of one shape along a new dim."""

from kernelforge.operators._joins import join

OPERATOR = join("stack", new_dim=True)
