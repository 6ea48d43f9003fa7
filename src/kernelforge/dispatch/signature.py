"""What two calls of a model must share to be the same CUDA graph: arguments, by structure, and the state of torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeAlias

import torch
from torch.utils import _pytree as pytree

from kernelforge.capture.precision import all_flags
from kernelforge.native.extension import autocast_state

Key: TypeAlias = "tuple[object, ...]"

_ATOMS = frozenset({int, bool, str, bytes, type(None), torch.dtype, torch.device, torch.memory_format, torch.layout})


class UnsuitableArgument(TypeError):
    """An argument that a signature cannot hold. Its message says which and why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Signature:
    """One call's.

    Attributes:
        state: what of torch decides which kernels run. arguments: all of them but the values of tensors.
        tensors: the arguments' tensors in the order of `torch.utils._pytree`. names: theirs, for people.
    """

    state: Key
    arguments: Key
    tensors: tuple[torch.Tensor, ...]
    names: tuple[str, ...]

    @property
    def key(self) -> Key:
        """Equal for calls that differ in nothing but the values of their tensors."""
        return (self.state, self.arguments)

    @property
    def memories(self) -> list[int]:
        """`memory_id` of each tensor."""
        return list(map(memory_id, self.tensors))


def memory_id(tensor: torch.Tensor) -> int:
    """What all views of one memory have in common, as long as it lives."""
    try:
        return int(tensor.untyped_storage()._cdata)
    except (NotImplementedError, RuntimeError):
        return id(tensor)  # it has no one memory


def signature_of(args: Sequence[object], kwargs: Mapping[str, object]) -> Signature:
    """The signature of a call.

    Raises:
        UnsuitableArgument: an object that is neither a tensor, a plain value nor a container that torch knows.
    """
    state = (
        torch.is_grad_enabled(), torch.is_inference_mode_enabled(), autocast_state(), torch.get_default_dtype(),
        *[function() for function in _switches()], all_flags(),
    )  # fmt: skip
    key: list[object] = [len(args)]
    tensors: list[torch.Tensor] = []
    names: list[str] = []
    for position, value in enumerate(args):
        _add(value, f"argument {position}", key, tensors, names)
    for name, value in kwargs.items():
        key.append(name)
        _add(value, f"argument {name}", key, tensors, names)
    if len(tensors) > 1:
        memories = list(map(memory_id, tensors))
        key.append(tuple(map(memories.index, memories)))
    return Signature(state=state, arguments=tuple(key), tensors=tuple(tensors), names=tuple(names))


@cache
def _switches() -> tuple[Callable[[], object], ...]:
    """What else of torch decides which kernels a call runs."""
    module: Any = torch._C
    names = (
        "_get_deterministic_algorithms", "_get_deterministic_algorithms_warn_only", "_get_cudnn_enabled",
        "_get_cudnn_deterministic", "_get_flash_sdp_enabled", "_get_mem_efficient_sdp_enabled",
        "_get_math_sdp_enabled", "_get_cudnn_sdp_enabled", "_get_sdp_priority_order",
    )  # fmt: skip
    return tuple(_frozen(getattr(module, name)) for name in names if hasattr(module, name))


def _frozen(function: Callable[[], object]) -> Callable[[], object]:
    """Lists cannot be part of a key."""
    return (lambda: tuple(function())) if isinstance(function(), list) else function  # type: ignore[arg-type]


def _add(value: Any, name: str, key: list[object], tensors: list[torch.Tensor], names: list[str]) -> None:
    kind = type(value)
    if kind is torch.Tensor or kind is torch.nn.Parameter:
        if value.layout is not torch.strided or value.is_quantized:
            raise UnsuitableArgument(f"{name} is no strided tensor")
        if vars(value):
            raise UnsuitableArgument(f"{name} is a tensor with attributes of its own")
        key += (kind, value.shape, value.stride(), value.dtype, value.device, value.requires_grad, value.is_neg(),
                value.is_conj())  # fmt: skip
        tensors.append(value)
        names.append(name)
    elif kind in _ATOMS:
        key += (kind, value)
    elif kind is float or kind is complex:
        key += (kind, repr(value))  # 0.0 and -0.0 are equal but not the same argument
    elif (node := pytree._get_node_type(value)) in pytree.SUPPORTED_NODES:
        children, context = pytree.SUPPORTED_NODES[node].flatten_fn(value)
        if not _is_plain(context):
            raise UnsuitableArgument(f"{name} is a {kind.__name__}, which may change where a signature cannot see it")
        key += (kind, len(children), repr(context))
        for index, child in enumerate(children):
            _add(child, f"{name}[{index}]", key, tensors, names)
    elif isinstance(value, torch.Tensor):
        raise UnsuitableArgument(f"{name} is a tensor of the subclass {kind.__name__}")
    else:
        raise UnsuitableArgument(f"{name} is a {kind.__name__}, which may change where a signature cannot see it")


def _is_plain(context: object) -> bool:
    """Whether what torch keeps of a container beside its items is told by its text."""
    if isinstance(context, list | tuple):
        return all(map(_is_plain, context))
    return type(context) in _ATOMS or isinstance(context, type | float)


def with_tensors(
    args: Sequence[object], kwargs: Mapping[str, object], tensors: Sequence[torch.Tensor]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The same arguments with other tensors, given in the order of `Signature.tensors`."""
    leaves, spec = pytree.tree_flatten((tuple(args), dict(kwargs)))
    supply = iter(tensors)
    swapped = [next(supply) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
    new_args, new_kwargs = pytree.tree_unflatten(swapped, spec)
    return new_args, new_kwargs
