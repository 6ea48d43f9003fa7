"""Metadata of live tensors and calls. Owns `tensor_spec` and `describe_call`, shared by the recorder and by dispatch.

Imports torch lazily, so that the module itself costs nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any

from kernelforge.capture.types import (
    Arguments,
    DtypeRef,
    TensorRef,
    TensorSpec,
    Value,
    alignment_of,
    contiguous_stride,
)

if TYPE_CHECKING:
    import torch


@cache
def dtype_name(dtype: torch.dtype) -> str:
    """Torch's name of a dtype without "torch."."""
    return str(dtype).removeprefix("torch.")


def layout_name(tensor: torch.Tensor) -> str:
    """What a raw pointer cannot show: "strided" for plain memory, else torch's layout, "quantized", "conj" or "neg".

    The lazy conjugate and negative bits are invisible to DLPack too, so a tensor that has one is no plain one.
    """
    import torch

    if tensor.layout is not torch.strided:
        return str(tensor.layout).removeprefix("torch.")
    if tensor.is_quantized:
        return "quantized"
    if tensor.is_conj():
        return "conj"
    return "neg" if tensor.is_neg() else "strided"


def tensor_spec(tensor: torch.Tensor) -> TensorSpec:
    """The spec of a live tensor. One without plain memory counts as row-major (if it has no strides), alignment 1."""
    import torch

    layout, shape = layout_name(tensor), tuple(tensor.shape)
    stride = tensor.stride() if tensor.layout is torch.strided else contiguous_stride(shape)
    alignment = alignment_of(tensor.data_ptr()) if layout == "strided" else 1
    return _spec((shape, stride, tensor.dtype, tensor.device.type, layout, alignment, tensor.requires_grad))


@lru_cache(maxsize=4096)
def _spec(facts: tuple[Any, ...]) -> TensorSpec:
    """Most tensors of a model are like others; making a spec costs ten times what finding it does."""
    shape, stride, dtype, device, layout, alignment, requires_grad = facts
    return TensorSpec(
        shape=shape, stride=stride, dtype=dtype_name(dtype), device=device, layout=layout, alignment=alignment,
        requires_grad=requires_grad,
    )  # fmt: skip


def describe_call(operator_name: str, canonical: Mapping[str, object]) -> tuple[Arguments, list[torch.Tensor]]:
    """Split canonical bound arguments into torch-free arguments and the input tensors that they point to.

    Every appearance of a tensor gets its own index, also of the same tensor twice: a candidate has one parameter per
    appearance, and what shares memory is told by `memory_aliases`.

    Raises:
        TypeError: an argument that no variant can hold (a torch.Generator, say).
    """
    import torch

    tensors: list[torch.Tensor] = []

    def convert(name: str, value: object) -> Value:
        if isinstance(value, torch.Tensor):
            tensors.append(value)
            return TensorRef(len(tensors) - 1)
        if value is None or isinstance(value, str):
            return value
        if isinstance(value, bool):
            return bool(value)
        if isinstance(value, int):
            return int(value)
        if isinstance(value, float):
            return float(value)
        if isinstance(value, tuple | list):
            return tuple(convert(name, item) for item in value)
        if isinstance(value, torch.dtype):
            return DtypeRef(dtype_name(value))
        if isinstance(value, torch.device | torch.memory_format | torch.layout):
            return str(value)
        raise TypeError(f"{operator_name}: argument {name} is a {type(value).__name__}, which no variant can hold")

    arguments = tuple((name, convert(name, value)) for name, value in canonical.items())
    return arguments, tensors


def require_plain(operator_name: str, tensors: Sequence[torch.Tensor]) -> None:
    """Refuse tensors that are not torch's own: what the memory of a subclass holds is the subclass's business.

    Raises:
        TypeError: names the class (DTensor, say).
    """
    import torch

    for tensor in tensors:
        if type(tensor) not in (torch.Tensor, torch.nn.Parameter):
            raise TypeError(f"{operator_name}: an argument is a {type(tensor).__name__}, a subclass of torch.Tensor")


def memory_aliases(tensors: Sequence[torch.Tensor]) -> tuple[tuple[int, int], ...]:
    """Pairs (i, j), i < j, of tensors whose memory ranges overlap."""
    if len(tensors) < 2:
        return ()
    spans = [_span(t) for t in tensors]
    return tuple(
        (i, j)
        for i in range(len(spans))
        for j in range(i + 1, len(spans))
        if spans[i][0] == spans[j][0] and spans[i][1] < spans[j][2] and spans[j][1] < spans[i][2]
    )


def _span(tensor: torch.Tensor) -> tuple[object, int, int]:
    """Device and first and last byte address of a tensor's elements; an empty range when there is no plain memory."""
    import torch

    if tensor.layout is not torch.strided or tensor.is_quantized or tensor.numel() == 0:
        return tensor.device, 0, 0
    start = tensor.data_ptr()
    reach = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.device, start, start + (1 + reach) * tensor.element_size()


def autocast_dtype(device: str) -> str:
    """The autocast dtype if autocast is on for the device type, else ""."""
    import torch

    return dtype_name(torch.get_autocast_dtype(device)) if torch.is_autocast_enabled(device) else ""


@cache
def capability_of(device: str, index: int = 0) -> str:
    """ "sm_90" for a CUDA device, "" for the CPU."""
    if device != "cuda":
        return ""
    import torch

    major, minor = torch.cuda.get_device_capability(index)
    return f"sm_{major}{minor}"
