"""What contiguous and clone share."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from kernelforge.operators._arguments import per_element, tensor
from kernelforge.operators.types import Bound, Entry, Operator, Unsupported

if TYPE_CHECKING:
    import torch


def copy_operator(name: str, default: str) -> Operator:
    """A copy of input in the memory format of that name ("preserve_format" keeps the order of dense strides)."""
    parameters = "memory_format=None"

    def normalise(bound: dict[str, object]) -> dict[str, object] | Unsupported:
        import torch

        source, given = tensor(bound["input"]), bound["memory_format"]
        wanted = cast("torch.memory_format", getattr(torch, default) if given is None else given)
        if name == "contiguous" and source.is_contiguous(memory_format=wanted):
            return Unsupported(reason="contiguous already: returns its input")
        return {"input": source, "memory_format": str(wanted).removeprefix("torch.")}

    return Operator(
        name=name,
        arguments=("input", "memory_format"),
        entries=(
            Entry(target=f"torch.Tensor.{name}", parameters=f"(input, /, {parameters})"),
            Entry(target=f"torch.ops.aten.{name}.default", parameters=f"(input, /, *, {parameters})"),
            *((Entry(target="torch.clone", parameters=f"(input, *, {parameters})"),) if name == "clone" else ()),
        ),
        normalise=normalise,
        call=_call,
        flops=per_element(1),
        family="emitter",
    )


def _call(arguments: Bound) -> object:
    import torch

    return tensor(arguments["input"]).clone(memory_format=getattr(torch, str(arguments["memory_format"])))
