"""Copies of tensors as the example store keeps them. Owns `Snapshot`, and how a tensor is described and redrawn.

Imports torch lazily.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kernelforge.capture.facts import dtype_name
from kernelforge.capture.types import Distribution
from kernelforge.digest import digest_bytes

if TYPE_CHECKING:
    import torch

_CHUNK = 1 << 22  # elements described at a time, so that a tensor above the cap is not copied whole to float64


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Snapshot:
    """A copy of a tensor's values.

    Attributes:
        values: packed values, see `pack`.
        digest: of the values.
        shape, stride, dtype: of the tensor itself.
    """

    values: torch.Tensor
    digest: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: str


def snapshot(tensor: torch.Tensor) -> Snapshot:
    """Copy a tensor of any device to the CPU."""
    values = pack(tensor)
    return Snapshot(
        values=values, digest=content_digest(values), shape=tuple(tensor.shape), stride=tensor.stride(),
        dtype=dtype_name(tensor.dtype),
    )  # fmt: skip


def packed_bytes(tensor: torch.Tensor) -> int:
    """Size of `pack(tensor)` in bytes."""
    count = tensor.element_size()
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        count *= 1 if stride == 0 and size > 1 else size
    return count


def pack(tensor: torch.Tensor) -> torch.Tensor:
    """A copy of the values, row-major on the CPU; expanded axes (stride 0) are kept once, complex as pairs of reals."""
    import torch

    values = tensor.detach()
    for axis, (size, stride) in enumerate(zip(tensor.shape, tensor.stride(), strict=True)):
        if stride == 0 and size > 1:
            values = values.narrow(axis, 0, 1)
    values = values.resolve_conj().resolve_neg()
    if values.is_complex():
        values = torch.view_as_real(values)
    return values.to("cpu", copy=True, memory_format=torch.contiguous_format)


def unpack(values: torch.Tensor, shape: Sequence[int], stride: Sequence[int], dtype: str) -> torch.Tensor:
    """The inverse of `pack`: a tensor of that shape and stride in memory of its own; gaps between elements are zero."""
    import torch

    if getattr(torch, dtype).is_complex:
        values = torch.view_as_complex(values)
    reach = 0 if 0 in shape else 1 + sum((n - 1) * s for n, s in zip(shape, stride, strict=True))
    memory = torch.zeros(reach, dtype=values.dtype, device=values.device)
    target = memory.as_strided(values.shape, stride)
    target.copy_(values)
    return memory.as_strided(shape, stride)


def content_digest(values: torch.Tensor) -> str:
    """Hex sha256 of dtype and bytes of a row-major CPU tensor (its shape is not part of it, but of the example)."""
    import torch

    raw = values.reshape(-1).view(torch.uint8).numpy()
    return digest_bytes(dtype_name(values.dtype).encode() + b"\0" + str(tuple(values.shape)).encode() + raw.tobytes())


def describe(tensor: torch.Tensor) -> Distribution:
    """The distribution of a tensor's elements."""
    import torch

    count = zeros = infinite = nan = 0
    total = squares = 0.0
    low, high = torch.inf, -torch.inf
    for chunk in _chunks(tensor.detach()):
        finite = chunk[torch.isfinite(chunk)]
        zeros += int((chunk == 0).sum())
        infinite += int(torch.isinf(chunk).sum())
        nan += int(torch.isnan(chunk).sum())
        if finite.numel():
            count += finite.numel()
            total += finite.sum().item()
            squares += finite.square().sum().item()
            low, high = min(low, finite.min().item()), max(high, finite.max().item())
    elements, mean = max(tensor.numel(), 1), total / max(count, 1)
    return Distribution(
        shape=tuple(tensor.shape), stride=tensor.stride(), dtype=dtype_name(tensor.dtype),
        mean=mean, std=max(squares / max(count, 1) - mean * mean, 0.0) ** 0.5,
        low=low if count else 0.0, high=high if count else 0.0,
        zeros=zeros / elements, infinite=infinite / elements, nan=nan / elements,
    )  # fmt: skip


def redraw(distribution: Distribution, seed: int, device: str = "cpu") -> torch.Tensor:
    """Draw a tensor like the described one: normal within its bounds for floats, uniform for integers and bools.

    The same seed gives the same values on the same kind of device.
    """
    import torch

    d = distribution
    generator = torch.Generator(device).manual_seed(seed)
    dtype = getattr(torch, d.dtype)
    reach = 0 if 0 in d.shape else 1 + sum((n - 1) * s for n, s in zip(d.shape, d.stride, strict=True))
    if dtype is torch.bool:
        memory = torch.rand(reach, generator=generator, device=device) < d.mean
    elif dtype.is_floating_point or dtype.is_complex:
        drawn = torch.randn(reach, generator=generator, device=device).mul_(d.std).add_(d.mean).clamp_(d.low, d.high)
        chance = torch.rand(reach, generator=generator, device=device)
        drawn[chance < d.zeros] = 0.0
        drawn[chance > 1 - d.infinite] = torch.inf if d.high >= 0 and d.mean >= 0 else -torch.inf
        memory = drawn.to(dtype)
    else:
        memory = torch.randint(int(d.low), int(d.high) + 1, (reach,), generator=generator, device=device).to(dtype)
    return memory.as_strided(d.shape, d.stride)


def _chunks(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """The elements in float64, a limited number at a time."""
    import torch

    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    if tensor.numel() <= _CHUNK:
        yield tensor.reshape(-1).to(torch.float64)
        return
    axis = max(range(tensor.ndim), key=lambda a: tensor.shape[a])
    step = max(1, tensor.shape[axis] * _CHUNK // tensor.numel())
    for start in range(0, tensor.shape[axis], step):
        yield from _chunks(tensor.narrow(axis, start, min(step, tensor.shape[axis] - start)))
