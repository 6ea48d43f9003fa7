"""The index of the largest element along a dim, or (dim None) of the flattened tensor."""

from __future__ import annotations

from kernelforge.operators._arguments import Canonical, dim_of, per_input_element, tensor
from kernelforge.operators._targets import eager
from kernelforge.operators.types import Entry, Operator


def _normalise(bound: dict[str, object]) -> Canonical:
    if bound["dim"] is not None:
        bound["dim"] = dim_of(bound["dim"], tensor(bound["input"]).dim())
    return bound


OPERATOR = Operator(
    name="argmax",
    arguments=("input", "dim", "keepdim"),
    entries=(
        Entry(target="torch.argmax", parameters="(input, dim=None, keepdim=False)"),
        Entry(target="torch.Tensor.argmax", parameters="(input, /, dim=None, keepdim=False)"),
        Entry(target="torch.ops.aten.argmax.default", parameters="(input, /, dim=None, keepdim=False)"),
    ),
    normalise=_normalise,
    call=eager("torch.argmax"),
    flops=per_input_element(1),
)
