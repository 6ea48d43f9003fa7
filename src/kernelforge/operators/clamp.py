"""input limited to [min, max]; either may be None or a tensor."""

from __future__ import annotations

from kernelforge.operators._arguments import Canonical, per_element, scalar_for, tensor
from kernelforge.operators._pointwise import INPLACE, PLAIN
from kernelforge.operators._targets import eager
from kernelforge.operators.types import Entry, Operator


def _normalise(bound: dict[str, object]) -> Canonical:
    tensor(bound["input"])
    for name in ("min", "max"):
        value = bound.setdefault(name, None)
        bound[name] = None if value is None else scalar_for(value, bound["input"])
    return bound


def _entries(name: str, parameters: str) -> tuple[Entry, ...]:
    return (
        Entry(target=f"torch.{name}", parameters=f"(input, {parameters})", preset=PLAIN),
        Entry(target=f"torch.Tensor.{name}", parameters=f"(input, /, {parameters})", preset=PLAIN),
        Entry(target=f"torch.{name}_", parameters=f"(input, {parameters})", preset=INPLACE),
        Entry(target=f"torch.Tensor.{name}_", parameters=f"(input, /, {parameters})", preset=INPLACE),
    )


OPERATOR = Operator(
    name="clamp",
    arguments=("input", "min", "max", "inplace"),
    entries=(
        *_entries("clamp", "min=None, max=None"),
        *_entries("clip", "min=None, max=None"),
        *_entries("clamp_min", "min"),
        *_entries("clamp_max", "max"),
        Entry(target="torch.ops.aten.clamp.default", parameters="(input, /, min=None, max=None)", preset=PLAIN),
        Entry(target="torch.ops.aten.clamp_min.default", parameters="(input, /, min)", preset=PLAIN),
    ),
    normalise=_normalise,
    call=eager("torch.clamp", inplace="torch.Tensor.clamp_"),
    flops=per_element(2),
    family="emitter",
)
