"""Padding (or, where negative, cropping) of the last dims; `pad` lists (before, after) from the last dim backwards."""

from __future__ import annotations

from kernelforge.operators._arguments import (
    Canonical,
    as_float,
    concrete_ints,
    concrete_tensor,
    ints,
    per_element,
    pick,
)
from kernelforge.operators._targets import eager
from kernelforge.operators.types import ConcreteArguments, Entry, Operator, Unsupported


def _normalise(bound: dict[str, object]) -> Canonical:
    value, mode = bound["value"], bound["mode"]
    bound["pad"] = ints(bound["pad"])
    if mode == "constant":
        bound["value"] = as_float(value or 0.0)
    elif value:
        return Unsupported(reason=f"a fill value in mode {mode}")
    else:
        bound["value"] = None
    return pick(bound, "input", "pad", "mode", "value")


def _bytes_read(arguments: ConcreteArguments) -> int:
    tensor, pad = concrete_tensor(arguments, "input"), concrete_ints(arguments, "pad")
    covered = tensor.size_bytes
    for position in range(len(pad) // 2):
        size = tensor.shape[-1 - position]
        kept = size + min(pad[2 * position], 0) + min(pad[2 * position + 1], 0)
        covered = covered * kept // max(size, 1)
    return covered


OPERATOR = Operator(
    name="pad",
    arguments=("input", "pad", "mode", "value"),
    entries=(
        Entry(target="torch.nn.functional.pad", parameters="(input, pad, mode='constant', value=None)"),
        Entry(target="torch.constant_pad_nd", parameters="(input, pad, value=0)", preset={"mode": "constant"}),
        Entry(
            target="torch.ops.aten.constant_pad_nd.default",
            parameters="(input, /, pad, value=0)",
            preset={"mode": "constant"},
        ),
        Entry(target="torch.ops.aten.pad.default", parameters="(input, /, pad, mode='constant', value=None)"),
    ),
    normalise=_normalise,
    call=eager("torch.nn.functional.pad"),
    flops=per_element(1),
    bytes_read=_bytes_read,
    family="pad",
    varying_ints=("pad",),
)
