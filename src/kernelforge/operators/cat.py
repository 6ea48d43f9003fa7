"""Tensors one after the other along a dim."""

from kernelforge.operators._joins import join

OPERATOR = join("cat", synonyms=("concat", "concatenate"), new_dim=False)
