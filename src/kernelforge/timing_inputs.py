"""What a kernel and eager are timed on in this process: captured or drawn inputs, never the same in two calls."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack
from typing import TYPE_CHECKING

from kernelforge.capture.precision import applied
from kernelforge.cards.examples import ExampleStore
from kernelforge.cards.types import SizePoint, Variant, VariantRecord

if TYPE_CHECKING:
    from torch import Tensor

SETS_BYTES = {"cpu": 1 << 21, "cuda": 1 << 26}
"""Of the inputs that a block of repeated calls goes through: they stay in a near cache, as a model's small ones do."""
MOST_SETS = 512
MOST_BYTES = 1 << 30


class FreshInputs:
    """Sets of a call's inputs, whose large tensors hold other values in every block and every set.

    Args:
        least: so many sets there are at least, but for more than `MOST_BYTES` of inputs.
    """

    def __init__(self, tensors: Sequence[Tensor], *, least: int = 2) -> None:
        largest = max((t.numel() for t in tensors), default=0)
        changing = [i for i, t in enumerate(tensors) if t.numel() and 2 * t.numel() >= largest]
        self._base = {i: memory_of(tensors[i]).clone() for i in changing}
        size = sum(b.numel() * b.element_size() for b in self._base.values())
        device = tensors[0].device.type if tensors else "cpu"
        wanted = max(min(MOST_SETS, SETS_BYTES[device] // max(size, 1)), least)
        count = max(2, min(wanted, MOST_BYTES // max(size, 1)))
        self._copies = [{i: b.clone() for i, b in self._base.items()} for _ in range(count)]
        self.sets = [
            [c[i].as_strided(t.shape, t.stride()) if i in c else t for i, t in enumerate(tensors)] for c in self._copies
        ]

    def renew(self, count: int) -> None:
        """Write other values into the first `count` sets."""
        for copies in self._copies[:count]:
            for position, copy in copies.items():
                write_others(self._base[position], copy)


def memory_of(tensor: Tensor) -> Tensor:
    """The memory from a tensor's first to its last element, as a tensor of one dimension."""
    extent = 1 + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True)) if tensor.numel() else 0
    return tensor.as_strided((extent,), (1,))


def write_others(base: Tensor, out: Tensor) -> None:
    """Fill `out` with what differs from all that was written before, of the same kind as `base`.

    Floats are scaled and shifted by random amounts, which leaves the positive ones positive. Of integers and bools,
    which may be indices, the order is turned.
    """
    import torch

    if base.is_floating_point():
        torch.ops.aten.mul.out(base, 1 + (1 + secrets.randbelow(1 << 20)) / (1 << 22), out=out)
        torch.ops.aten.add_.Scalar(out, (1 + secrets.randbelow(1 << 20)) / (1 << 24))
    else:
        torch.ops.aten.copy_.default(out, torch.ops.aten.roll.default(base, [secrets.randbelow(max(base.numel(), 1))]))


def inputs_of(record: VariantRecord, point: SizePoint, examples: ExampleStore) -> list[Tensor]:
    """The captured tensors of the point, or drawn ones where none are stored, on the variant's device."""
    variant = record.variant
    if point.example and examples.has(point.example):
        return examples.get(point.example, device=variant.device)
    return drawn(variant, point, "normal")


def drawn(variant: Variant, point: SizePoint, distribution: str) -> list[Tensor]:
    import torch

    from kernelforge.verify.draw import draw_inputs

    specs = [pattern.spec(point.dims, variant.device) for pattern in variant.tensors]
    drawn = draw_inputs(
        variant, specs, distribution, pools=[None] * len(specs), seed=secrets.randbits(63),
        device=torch.device(variant.device),
    )  # fmt: skip
    return list(drawn)


def under_autocast(variant: Variant) -> AbstractContextManager[object]:
    """The state under which the variant's calls were captured."""
    import torch

    stack = ExitStack()
    if variant.precision:
        stack.enter_context(applied(variant.precision))
    if variant.autocast:
        dtype = getattr(torch, variant.autocast)
        stack.enter_context(torch.autocast(variant.device, dtype=dtype, cache_enabled=False))
    return stack
