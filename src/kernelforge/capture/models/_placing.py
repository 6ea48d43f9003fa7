"""Puts models and inputs where the options say, and makes callables of them. Shared by the model sources."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kernelforge.capture.models.types import ModelOptions, SampleCall
from kernelforge.errors import ModelError, UsageError


def torch_dtype(name: str) -> Any:
    """The torch dtype of that name, or None for "".

    Raises:
        UsageError: torch has no such floating dtype.
    """
    import torch

    found = getattr(torch, name, None) if name else None
    if name and not (isinstance(found, torch.dtype) and found.is_floating_point):
        raise UsageError(f"unknown floating dtype {name!r}", hint="use float32, float16, bfloat16 or float64")
    return found


def place_model(model: Any, options: ModelOptions) -> Any:
    """Move a module to the device and dtype, in evaluation mode; anything else is left alone."""
    from torch import nn

    if isinstance(model, nn.Module):
        model = model.to(options.device).eval()
        dtype = torch_dtype(options.dtype)
        return model if dtype is None else model.to(dtype)
    return model


def place_inputs(value: Any, options: ModelOptions) -> Any:
    """Move tensors, also inside lists, tuples and dicts; only floating ones change dtype."""
    import torch

    if isinstance(value, torch.Tensor):
        dtype = torch_dtype(options.dtype)
        return value.to(options.device, dtype if dtype is not None and value.is_floating_point() else value.dtype)
    if isinstance(value, Mapping):
        return {k: place_inputs(v, options) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return type(value)([place_inputs(v, options) for v in value])
    return value


def sample_call(
    run: Callable[..., Any], inputs: Sequence[Any] | Mapping[str, Any], options: ModelOptions
) -> SampleCall:
    """A callable without arguments that runs one sample without gradients. Inputs by position, or by name in a dict."""
    if not isinstance(inputs, Mapping | list | tuple):
        raise ModelError(
            f"a set of inputs is a {type(inputs).__name__}, not a list of the arguments of the model",
            hint="return [x], also for a single tensor; or a dict by name",
        )
    args: list[Any] = [] if isinstance(inputs, Mapping) else [place_inputs(v, options) for v in inputs]
    kwargs: dict[str, Any] = place_inputs(dict(inputs), options) if isinstance(inputs, Mapping) else {}
    return SampleCall(run=run, args=tuple(args), kwargs=kwargs)
