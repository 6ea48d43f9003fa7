"""Tensors as raw bytes and back: exactly the bytes from a tensor's first element to its last. Loads torch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from kernelforge.capture.types import TensorSpec

PIECE_BYTES = 16 << 20


def torch_dtype(name: str) -> torch.dtype:
    """The dtype of that name, for example "bfloat16"."""
    dtype = getattr(torch, name)
    assert isinstance(dtype, torch.dtype)
    return dtype


def allocate(spec: TensorSpec, device: torch.device) -> Tensor:
    """A tensor with the spec's strides; elements that the strides skip hold NaN (the lowest integer), so that a
    kernel which reads them shows it."""
    dtype = torch_dtype(spec.dtype)
    filler: float | int = float("nan")
    if not dtype.is_floating_point:
        filler = 1 if dtype == torch.bool else torch.iinfo(dtype).min
    storage = torch.full((spec.storage_elements,), filler, dtype=dtype, device=device)
    return storage.as_strided(spec.shape, spec.stride)


def place(values: Tensor, spec: TensorSpec) -> Tensor:
    """Lay values out with the spec's strides. An expanded axis (stride 0) takes the values of its index 0."""
    out = allocate(spec, values.device)
    if 0 in spec.shape:
        return out
    index = tuple(slice(0, 1) if s == 0 else slice(None) for s in spec.stride)
    out[index].copy_(values.expand(spec.shape)[index])
    return out


def to_bytes(tensor: Tensor) -> memoryview:
    """The bytes from the first element to the last that the strides reach (a copy for tensors of a GPU)."""
    return _view(_flat_bytes(tensor).cpu())


def bytes_of(tensor: Tensor) -> tuple[int, Iterator[memoryview]]:
    """The same: how many, and the bytes in pieces, each of which is good until the next is asked for."""
    flat = _flat_bytes(tensor)
    return flat.numel(), _pieces(flat)


def _pieces(flat: Tensor) -> Iterator[memoryview]:
    if not flat.is_cuda:
        yield _view(flat)
        return
    # Pages that a copy touches for the first time cost more than the copy: these are used again and again.
    staging = torch.empty(min(PIECE_BYTES, flat.numel()), dtype=torch.uint8, pin_memory=True)
    for start in range(0, flat.numel(), PIECE_BYTES):
        part = flat[start : start + PIECE_BYTES]
        yield _view(staging[: part.numel()].copy_(part))


def _flat_bytes(tensor: Tensor) -> Tensor:
    count = 0 if tensor.numel() == 0 else 1 + sum((n - 1) * s for n, s in _axes(tensor))
    return tensor.detach().as_strided((count,), (1,)).view(torch.uint8)


def _view(flat: Tensor) -> memoryview:
    return memoryview(np.ascontiguousarray(flat.numpy()).data)


def from_bytes(data: bytes | bytearray | memoryview, spec: TensorSpec, device: torch.device) -> Tensor:
    """The inverse of `to_bytes`; shares the memory of a bytearray, copies anything else.

    Raises:
        ValueError: the number of bytes is not the spec's.
    """
    if len(data) != spec.storage_bytes:
        raise ValueError(f"{len(data)} bytes for a tensor of {spec.storage_bytes}")
    dtype = torch_dtype(spec.dtype)
    if not len(data):
        return torch.empty(0, dtype=dtype, device=device).as_strided(spec.shape, spec.stride)
    owned = data if isinstance(data, bytearray) else bytearray(data)
    flat = torch.frombuffer(owned, dtype=torch.uint8).view(dtype).to(device)
    return flat.as_strided(spec.shape, spec.stride)


def clone_like(tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Copies with the same strides, gaps included."""
    copies = []
    for tensor in tensors:
        count = 0 if tensor.numel() == 0 else 1 + sum((n - 1) * s for n, s in _axes(tensor))
        flat = tensor.as_strided((count,), (1,)).clone()
        copies.append(flat.as_strided(tensor.shape, tensor.stride()))
    return tuple(copies)


def _axes(tensor: Tensor) -> list[tuple[int, int]]:
    return list(zip(tensor.shape, tensor.stride(), strict=True))
