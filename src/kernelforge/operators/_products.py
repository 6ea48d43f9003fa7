"""FLOPs of matrix products and convolutions."""

from __future__ import annotations

from math import prod

from kernelforge.operators._arguments import concrete_tensor, input_bytes
from kernelforge.operators._windows import touched_bytes
from kernelforge.operators.types import ConcreteArguments, TensorShape

LEAST_OF_PRODUCT = 7 / 8
"""One level of Strassen's algorithm, with 7 products of blocks in place of 8."""
LEAST_OF_CONVOLUTION = 1 / 5
"""Winograd's F(6x6, 3x3) needs 64 multiplications for 324."""


def product_flops(arguments: ConcreteArguments, outputs: tuple[TensorShape, ...]) -> int:
    """2 x output elements x the inner size, which is the last dim of `input`."""
    return max(1, 2 * outputs[0].elements * concrete_tensor(arguments, "input").shape[-1])


def convolution_flops(arguments: ConcreteArguments, outputs: tuple[TensorShape, ...]) -> int:
    """2 x output elements x the weights that one of them needs; `weight` is [out, in / groups, *kernel]."""
    return max(1, 2 * outputs[0].elements * prod(concrete_tensor(arguments, "weight").shape[1:]))


def convolution_bytes(arguments: ConcreteArguments) -> int:
    """Bytes of the weights and of that part of the input which windows cover."""
    kernel = concrete_tensor(arguments, "weight").shape[2:]
    return input_bytes(arguments, without="input") + touched_bytes(arguments, kernel)
