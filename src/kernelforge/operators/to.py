"""A copy of input in another dtype. Calls that change no dtype return their input or move it, and are not forged."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from kernelforge.operators._arguments import Canonical, per_element, tensor
from kernelforge.operators._targets import eager
from kernelforge.operators.types import Bound, Entry, Operator, Unsupported

if TYPE_CHECKING:
    import torch

_NAMES = {
    "float": "float32", "double": "float64", "half": "float16", "bfloat16": "bfloat16", "int": "int32",
    "long": "int64", "short": "int16", "char": "int8", "byte": "uint8", "bool": "bool",
}  # fmt: skip


def _normalise(bound: dict[str, object]) -> Canonical:
    import torch

    source = tensor(bound["input"])
    target = getattr(torch, str(bound["name"])) if "name" in bound else _wanted(source, bound)
    if isinstance(target, Unsupported):
        return target
    kwargs = bound.get("kwargs")
    options = kwargs if isinstance(kwargs, Mapping) else bound
    if options.get("memory_format") not in (None, torch.preserve_format):
        return Unsupported(reason="memory_format")
    if target == source.dtype:
        return Unsupported(reason="no change of dtype")
    return {"input": source, "dtype": target}


def _wanted(source: torch.Tensor, bound: dict[str, object]) -> torch.dtype | Unsupported:
    """The dtype that the arguments of `to`, `type` or `type_as` ask for."""
    import torch

    args, kwargs = bound.get("args", ()), bound.get("kwargs", {})
    assert isinstance(args, tuple) and isinstance(kwargs, Mapping)
    dtype: torch.dtype = source.dtype
    for value in (*args, *(kwargs.get(k) for k in ("device", "dtype", "other"))):
        device: object = None
        if isinstance(value, torch.dtype):
            dtype = value
        elif isinstance(value, torch.Tensor):
            dtype, device = value.dtype, value.device
        elif not isinstance(value, bool):
            device = value
        if device is not None and not _same_device(source.device, device):
            return Unsupported(reason="another device, or a dtype by another name")
    return dtype


def _same_device(own: torch.device, value: object) -> bool:
    import torch

    if isinstance(value, str) and value.startswith("torch."):
        return False
    if not isinstance(value, str | int | torch.device):
        return False
    wanted = torch.device(value)
    if wanted.type == "cuda" and wanted.index is None:
        wanted = torch.device("cuda", torch.cuda.current_device())
    return wanted == own


def _call(arguments: Bound) -> object:
    # Raised to float64 both dtypes may be the same; the result must be a new tensor all the same.
    return _copy({**arguments, "copy": True})


_copy = eager("torch.Tensor.to")

OPERATOR = Operator(
    name="to",
    arguments=("input", "dtype"),
    entries=(
        Entry(target="torch.Tensor.to", parameters="(input, /, *args, **kwargs)"),
        Entry(target="torch.Tensor.type_as", parameters="(input, /, *args)"),
        Entry(target="torch.Tensor.type", parameters="(input, /, *args, **kwargs)"),
        *(
            Entry(target=f"torch.Tensor.{method}", parameters="(input, /, memory_format=None)", preset={"name": dtype})
            for method, dtype in _NAMES.items()
        ),
        Entry(target="torch.ops.aten._to_copy.default", parameters="(input, /, **kwargs)"),
    ),
    normalise=_normalise,
    call=_call,
    flops=per_element(1),
    family="emitter",
)
