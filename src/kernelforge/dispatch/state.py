"""What the wrapper asks of torch and of single values: pieces of the admission that no binary can check."""

from __future__ import annotations

import torch
from torch.autograd import forward_ad
from torch.utils._device import DeviceContext

_DEVICES = frozenset({"cpu", "cuda"})


def call_problem(*, by_autocast: bool) -> str:
    """Why no kernel may run in the present state of torch, or "". A kernel is invisible to modes and transforms.

    Args:
        by_autocast: autocast is part of the signature, so it is no problem in itself.
    """
    if torch._C._len_torch_dispatch_stack():
        return "dispatch mode"
    if foreign_modes():
        return "function mode"
    if torch._C._is_tracing():
        return "tracing"
    if torch._C._functorch.peek_interpreter_stack() is not None:
        return "functorch"
    if forward_ad._current_level >= 0:
        return "forward AD"
    if torch.get_default_dtype() is not torch.float32:
        # It decides the dtype of results of integers and numbers; kernels were captured under float32.
        return "default dtype"
    if not by_autocast and torch._C._is_any_autocast_enabled():
        return "autocast"
    return ""


def foreign_modes() -> bool:
    """Whether a function mode is active that must see every call."""
    # `torch.set_default_device` and `with torch.device(...)` are function modes too, but touch factories only.
    depth = torch._C._len_torch_function_stack()
    return any(type(torch._C._get_function_stack_at(i)) is not DeviceContext for i in range(depth))


def is_plain(tensor: torch.Tensor) -> bool:
    """Whether a tensor's values are what its memory says: strided, present, without lazy bits, on a device we know."""
    return (
        tensor.layout is torch.strided
        and tensor.device.type in _DEVICES
        and not torch._C._functorch.is_functorch_wrapped_tensor(tensor)
        and not (tensor.is_quantized or tensor.is_conj() or tensor.is_neg() or tensor._is_zerotensor())
    )


def freeze(value: object, signature: list[object], tensors: list[torch.Tensor]) -> None:
    """Append an argument that is neither a tensor nor an atom to a signature.

    Raises:
        TypeError: a value that signatures cannot hold.
    """
    kind = type(value)
    if kind is float:
        assert isinstance(value, float)
        signature += (kind, value or repr(value))  # 0.0 and -0.0 are equal but not the same argument
    elif kind is tuple or kind is list or kind is torch.Size:
        assert isinstance(value, tuple | list)
        signature += (tuple, len(value))
        for item in value:
            _freeze_item(item, signature, tensors)
    elif kind in {torch.device, torch.memory_format, torch.layout}:
        signature += (kind, value)
    else:
        raise TypeError(f"{kind.__name__} in a signature")


def _freeze_item(item: object, signature: list[object], tensors: list[torch.Tensor]) -> None:
    kind = type(item)
    if kind is torch.Tensor or kind is torch.nn.Parameter:
        assert isinstance(item, torch.Tensor)
        signature += (item.shape, item.stride(), item.dtype, item.get_device())
        tensors.append(item)
    elif kind is int or kind is bool or item is None:
        signature += (kind, item)
    else:
        freeze(item, signature, tensors)
