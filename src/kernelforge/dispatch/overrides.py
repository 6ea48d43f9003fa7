"""Calls in which a subclass or a function mode takes part: they are told of torch's function, not of our wrapper.

Owns `call_overridden`.

Torch tells `__torch_function__` which function was called by looking its attribute up, and finds our wrapper there. A
table of handlers that was made earlier does not know that one: it would take another way, and perhaps a wrong one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from types import FunctionType
from typing import Any

import torch
from torch.overrides import TorchFunctionMode, handle_torch_function, has_torch_function

from kernelforge.dispatch.patches import Function, genuine


class _Seen(Exception):
    """What a handler is told of a call."""

    def __init__(self, function: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        super().__init__()
        self.function, self.args_, self.kwargs = function, args, kwargs


class _Probe(TorchFunctionMode):
    """Stands above all modes and subclasses, and ends the call before anything is done."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        raise _Seen(func, args, kwargs or {})


def call_overridden(original: Function, args: tuple[object, ...], kwargs: Mapping[str, object]) -> object:
    """The original call, with its genuine function told to whoever overrides it.

    Args:
        original: what the call site stands for.
    """
    try:
        with _Probe():
            return original(*args, **kwargs)  # overrides are switched off here: then it has simply been made
    except _Seen as seen:
        function, told = genuine(seen.function), seen
    # A function in Python that nobody can override begins with some other call.
    its_own = not isinstance(original, FunctionType) or function is genuine(original)
    values = list(_overriding((*told.args_, *told.kwargs.values())))
    if not its_own or function is told.function or not (_modes() or has_torch_function(values)):
        return original(*args, **kwargs)
    return handle_torch_function(function, values, *told.args_, **told.kwargs)


def _modes() -> bool:
    return torch._C._len_torch_function_stack() > 0


def _overriding(values: Iterable[object]) -> Iterator[object]:
    """Arguments that may be asked: tensors, and objects of other classes that speak the protocol."""
    for value in values:
        if isinstance(value, tuple | list):
            yield from _overriding(value)
        elif hasattr(type(value), "__torch_function__"):
            yield value
