"""Tensors out of an arena and back into one, for the processes that have torch in them. Loads torch."""

from __future__ import annotations

import mmap
import warnings
from collections.abc import Sequence

import torch

from kernelforge.capture.types import TensorSpec
from kernelforge.wording import plural


def tensor_of(spec: TensorSpec, arena: mmap.mmap | bytes, offset: int, alignment: int, device: str) -> torch.Tensor:
    """A tensor of its own storage whose pointer has exactly this alignment (from 64 on: at least)."""
    dtype = getattr(torch, spec.dtype)
    size = spec.storage_bytes
    storage = torch.empty(size + 2 * max(alignment, 64), dtype=torch.uint8, device=device)
    period, want = (2 * alignment, alignment) if alignment < 64 else (alignment, 0)
    skip = (want - storage.data_ptr()) % period
    flat = storage[skip : skip + size]
    if size == 0:
        return torch.empty_strided(spec.shape, spec.stride, dtype=dtype, device=device)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given buffer is not writable")  # nor is it written to
        flat.copy_(torch.frombuffer(arena, dtype=torch.uint8, count=size, offset=offset))
    return flat.view(dtype).as_strided(spec.shape, spec.stride)


def clone_of(tensor: torch.Tensor) -> torch.Tensor:
    """The same with a storage of its own, gaps included."""
    storage = tensor.untyped_storage().clone()  # type: ignore[no-untyped-call]
    return torch.empty(0, dtype=tensor.dtype, device=tensor.device).set_(
        storage, tensor.storage_offset(), tensor.shape, tensor.stride()
    )


def tensors_in(result: object) -> list[torch.Tensor]:
    """The tensors of what an operator returned, in order."""
    if isinstance(result, torch.Tensor):
        return [result]
    if isinstance(result, tuple | list):
        return [tensor for item in result for tensor in tensors_in(item)]
    return []


def check_outputs(outputs: Sequence[torch.Tensor], specs: Sequence[TensorSpec], *, who: str = "eager") -> None:
    """Raises:
    ValueError: they are not what the variant says.
    """
    if len(outputs) != len(specs):
        raise ValueError(f"{who} returned {plural(len(outputs), 'tensor')}, the variant says {len(specs)}")
    for index, (tensor, spec) in enumerate(zip(outputs, specs, strict=True)):
        dtype = str(tensor.dtype).removeprefix("torch.")
        strides = [(a, b) for a, b, n in zip(tensor.stride(), spec.stride, spec.shape, strict=False) if n != 1]
        differs = tensor.numel() and any(a != b for a, b in strides)
        if tuple(tensor.shape) != spec.shape or dtype != spec.dtype or differs:
            got = f"{list(tensor.shape)} {dtype} stride {list(tensor.stride())}"
            want = f"{list(spec.shape)} {spec.dtype} stride {list(spec.stride)}"
            raise ValueError(f"output {index}: {who} gives {got}, the variant says {want}")


def raw_of(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes from the tensor's first element to its last, gaps included, as a view."""
    if tensor.numel() == 0:
        return torch.empty(0, dtype=torch.uint8, device=tensor.device)
    span = 1 + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.detach().as_strided((span,), (1,)).view(torch.uint8)


def write_tensor(out: mmap.mmap | None, offset: int, tensor: torch.Tensor) -> None:
    """Put the bytes of a tensor into an arena."""
    if tensor.numel() == 0:
        return
    assert out is not None
    raw = raw_of(tensor)
    torch.frombuffer(out, dtype=torch.uint8, count=raw.numel(), offset=offset).copy_(raw)
