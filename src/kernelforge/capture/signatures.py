"""Keys of calls: a cheap `signature` for the recorder's cache; a `group_key` of calls differing in sizes only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from kernelforge.capture.facts import memory_aliases
from kernelforge.capture.types import Arguments, DimRef, TensorSpec, Value, alignment_of
from kernelforge.operators import Operator

_ALIGNMENT = tuple(alignment_of(remainder) for remainder in range(16))
_PLAIN = frozenset({
    bool, int, float, str, type(None), torch.dtype, torch.device, torch.memory_format, torch.layout, type(Ellipsis),
})  # fmt: skip
# What a function mode sees but is no work: questions about a tensor, not operators.
_QUESTIONS = frozenset({
    "size", "stride", "dim", "ndimension", "numel", "nelement", "element_size", "data_ptr", "storage_offset",
    "is_contiguous", "is_floating_point", "is_complex", "is_signed", "is_inference", "is_pinned", "is_shared",
    "is_conj", "is_neg", "is_same_size", "is_set_to", "is_tensor", "is_storage", "untyped_storage", "storage",
    "type", "get_device", "has_names", "__len__", "__hash__", "__repr__", "__format__", "__class__", "requires_grad_",
    "is_distributed", "is_coalesced", "has_torch_function", "broadcast_shapes", "finfo", "iinfo", "can_cast",
    "result_type", "promote_types", "__dir__", "__reduce_ex__", "dim_order", "__deepcopy__", "_set_grad_enabled",
})  # fmt: skip


def is_metadata(name: str) -> bool:
    """Whether torch's qualified name is that of a question about a tensor, or of an attribute."""
    last = name.rsplit(".", 1)[-1]
    return last in _QUESTIONS or last in {"__get__", "__set__", "__delete__"}


def signature(
    func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], state: tuple[object, ...], mutating: bool
) -> object:
    """A hashable key such that calls of equal key are equal in all that `OperatorCall` records; None if there is none.

    Args:
        state: grad mode and autocast.
        mutating: the function changes an input, so that any overlap of its inputs matters, not only equal addresses.
    """
    tensors: list[torch.Tensor] = []
    addresses: list[int] = []
    try:
        key: tuple[object, ...] = (func, state, *[_part(a, tensors, addresses) for a in args])
        if kwargs:
            key += tuple([(k, _part(v, tensors, addresses)) for k, v in kwargs.items()])
    except (TypeError, RuntimeError, NotImplementedError):
        return None  # no plain memory, or a value that cannot be compared
    if len(addresses) > 1:
        key += tuple(map(addresses.index, addresses))
        if mutating:
            key += memory_aliases(tensors)
    return key


def _part(value: Any, tensors: list[torch.Tensor], addresses: list[int]) -> object:
    kind = value.__class__
    if kind in _PLAIN:
        return kind, value
    if kind is torch.Tensor or kind is torch.nn.Parameter:
        address = value.data_ptr()
        tensors.append(value)
        addresses.append(address)
        return (
            value.shape, value.stride(), value.dtype, value.device, value.requires_grad, value.is_neg(),
            value.is_conj(), _ALIGNMENT[address & 15],
        )  # fmt: skip
    if isinstance(value, tuple | list):
        return tuple([_part(item, tensors, addresses) for item in value])
    if isinstance(value, slice):
        return slice, _part((value.start, value.stop, value.step), tensors, addresses)
    raise TypeError(f"no key for a {type(value).__name__}")


def group_key(operator: Operator, arguments: Arguments, tensors: Sequence[TensorSpec]) -> str:
    """Equal for calls that may become one variant with named dims: all but sizes, strides and floats agree."""
    masked = [(name, mask_value(value, name in operator.varying_ints)) for name, value in arguments]
    kinds = [(t.dtype, len(t.shape), t.device, t.layout) for t in tensors]
    return repr((operator.name, masked, kinds))


def mask_value(value: Value, varying: bool) -> Value:
    """A value with its floats, and its integers if they may vary, replaced by a mark."""
    if isinstance(value, tuple):
        return tuple(mask_value(v, varying) for v in value)
    if isinstance(value, bool):
        return value
    if isinstance(value, int):
        return DimRef("*") if varying else value
    return "float" if isinstance(value, float) else value
