"""What the wrapper asks of torch and of single values: pieces of the admission that no binary can check."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch.autograd import forward_ad
from torch.utils._device import DeviceContext

from kernelforge.capture.precision import Question, flags_of, kind_of
from kernelforge.operators import Operator, get_operator
from kernelforge.package.types import Entry

_DEVICES = frozenset({"cpu", "cuda"})
_PLAIN_TYPES = frozenset({torch.Tensor, torch.nn.Parameter})


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


def unreadable(values: Iterable[object]) -> str:
    """Why arguments could not be put into a signature: the reason under which the call is counted."""
    reasons = [_unreadable(value) for value in values]
    # A subclass may have no strides either; its name says more.
    return next((r for r in reasons if r.startswith("subclass")), next(filter(None, reasons), "argument type"))


def _unreadable(value: object) -> str:
    # Not isinstance: a class may answer that as it likes.
    kind = type(value)
    if issubclass(kind, torch.Tensor):
        if kind not in _PLAIN_TYPES:
            return f"subclass {kind.__name__}"
        assert isinstance(value, torch.Tensor)
        try:
            value.stride()
        except RuntimeError:
            return "layout"
        return "layout" if value.is_nested else ""
    if kind is tuple or kind is list:
        assert isinstance(value, tuple | list)
        return next(filter(None, map(_unreadable, value)), "")
    return ""


def is_repeatable(entry: Entry) -> bool:
    """Whether the judge has seen the kernel write the same bits each time."""
    return entry.verdict.get("repeatable") is True


def must_repeat(operator: Operator, device: str) -> bool:
    """Whether torch was told to compute a call of the operator in the same way each time."""
    return any(bool(function(*arguments)) for function, arguments in _repeat_questions(operator, device))


def questions(entries: Iterable[Entry]) -> tuple[Question, ...]:
    """What of torch's global state belongs to the signatures of the calls that some entries may serve.

    Empty for most operators: only products and convolutions follow flags, and only kernels of which it is not known
    that they repeat themselves depend on whether they must.
    """
    found: dict[Question, None] = {}
    for entry in entries:
        variant = entry.variant
        operator = get_operator(variant.operator)
        dtypes = {variant.autocast, *(t.dtype for t in variant.tensors)}
        found.update(dict.fromkeys(f.ask for f in flags_of(operator, variant.device, dtypes)))
        if not is_repeatable(entry):
            found.update(dict.fromkeys(_repeat_questions(operator, variant.device)))
    return tuple(found)


def _repeat_questions(operator: Operator, device: str) -> tuple[Question, ...]:
    always = (torch._C._get_deterministic_algorithms, ())
    if kind_of(operator) != "convolution":
        return (always,)
    return always, ((torch._C._get_cudnn_deterministic if device == "cuda" else torch._C._get_mkldnn_deterministic), ())


def is_capturing(device: int) -> bool:
    """Whether work for a device (a CUDA index, or -1) now goes into a CUDA graph."""
    return device >= 0 and torch.cuda.is_current_stream_capturing()


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
