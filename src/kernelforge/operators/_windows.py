"""What operators with sliding windows (pooling, convolution) share: their integers and the bytes they read."""

from __future__ import annotations

from kernelforge.operators._arguments import concrete_ints, concrete_tensor, ints
from kernelforge.operators.types import ConcreteArguments


def window(bound: dict[str, object], rank: int, *names: str) -> None:
    """Make those integers tuples of length `rank`; a missing stride (None or empty) is the kernel's size."""
    stride = bound["stride"]
    if stride is None or stride in ((), []):
        bound["stride"] = bound["kernel_size"]
    for name in ("stride", *names):
        bound[name] = ints(bound[name], rank)


def touched_bytes(arguments: ConcreteArguments, kernel: tuple[int, ...]) -> int:
    """Bytes of `input` that windows of that size cover: all, but where the stride is larger than the window.

    Args:
        arguments: with `input` [..., *spatial] and `stride` of the length of `kernel`.
        kernel: window's size, dilation not counted.
    """
    covered = concrete_tensor(arguments, "input").size_bytes
    for size, step in zip(kernel, concrete_ints(arguments, "stride"), strict=True):
        if step > size:
            covered = covered * size // step
    return covered
