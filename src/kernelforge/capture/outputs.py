"""What a recorded call did: its outputs, the inputs it changed, and whether candidates can be made for such a call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from kernelforge.capture.facts import memory_aliases, tensor_spec
from kernelforge.capture.types import OperatorCall, TensorSpec
from kernelforge.operators import Operator

# Dtypes with a C type in the ABI of candidates.
_C_DTYPES = frozenset({
    "float32", "float64", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool",
})  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Outputs:
    """Output tensors of a call, flattened.

    Attributes:
        kind: "tensor", "tuple" (tuples and lists of tensors), "none" (a changed input is returned), or "other".
        aliases: for each output the input index whose memory it shares, or -1.
    """

    kind: str
    specs: tuple[TensorSpec, ...]
    aliases: tuple[int, ...]


def describe_outputs(result: Any, inputs: Sequence[torch.Tensor], mutates: tuple[int, ...]) -> Outputs:
    """Describe what a call returned."""
    if any(result is inputs[i] for i in mutates):
        return Outputs(kind="none", specs=(), aliases=())
    kind, tensors = _flatten(result)
    shared = tuple(_shared_input(t, inputs) for t in tensors)
    if kind == "tensor" and shared[0] in mutates:
        return Outputs(kind="none", specs=(), aliases=())
    return Outputs(kind=kind, specs=tuple(map(tensor_spec, tensors)), aliases=shared)


def _flatten(result: Any) -> tuple[str, list[torch.Tensor]]:
    if isinstance(result, torch.Tensor):
        return "tensor", [result]
    items = list(result.values()) if isinstance(result, Mapping) else result
    if not isinstance(items, tuple | list):
        return "other", []
    tensors = [t for item in items for t in _flatten(item)[1]]
    flat = not isinstance(result, Mapping) and all(isinstance(item, torch.Tensor) for item in items)
    return ("tuple" if flat and tensors else "other"), tensors


def _shared_input(output: torch.Tensor, inputs: Sequence[torch.Tensor]) -> int:
    for index, tensor in enumerate(inputs):
        if output is tensor:
            return index
    if output.layout is torch.strided:
        # What torch returns is new, or a view of an input's storage: most calls are done with here.
        storage = output.untyped_storage().data_ptr()
        if all(t.layout is torch.strided and t.untyped_storage().data_ptr() != storage for t in inputs):
            return -1
    return next((pair[1] - 1 for pair in memory_aliases((output, *inputs)) if pair[0] == 0), -1)


def input_versions(tensors: Sequence[torch.Tensor]) -> list[int]:
    """Version counters before a call; -1 for inference tensors, which have none."""
    return [-1 if t.is_inference() else t._version for t in tensors]


def changed_inputs(
    tensors: Sequence[torch.Tensor], before: Sequence[int], canonical: Mapping[str, object]
) -> tuple[int, ...]:
    """Indices of inputs that the call changed: by version counter, or by the argument `inplace` of the operator."""
    changed = {i for i, (old, new) in enumerate(zip(before, input_versions(tensors), strict=True)) if old != new}
    if canonical.get("inplace") is True:
        changed.add(0)
    return tuple(sorted(changed))


def unforgeable_reason(operator: Operator, call: OperatorCall) -> str:
    """Why no candidate can be made for such a call; "" if one can."""
    specs = (*call.tensors, *call.outputs)
    if operator.random:
        return "draws random numbers"
    if operator.view:
        return "returns a view of its input"
    if any(index >= 0 for index in call.output_aliases):
        return "returns memory of its input"
    if call.output_kind == "other":
        return "returns more than tensors"
    if any(s.layout != "strided" for s in specs):
        return "a tensor without plain memory (sparse, quantized, lazily conjugated or negated)"
    if any(s.device != call.device for s in specs):
        return "tensors on different devices"
    foreign = sorted({s.dtype for s in specs} - _C_DTYPES)
    if foreign:
        return f"no C type for {', '.join(foreign)}"
    if any(set(pair) & set(call.mutates) for pair in call.aliases):
        return "an input that it changes shares memory with another input"
    if all(s.elements == 0 for s in call.outputs) and not call.mutates:
        return "its outputs are empty"
    return ""
