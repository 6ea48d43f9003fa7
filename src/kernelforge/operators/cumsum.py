"""The running sum along a dim."""

from __future__ import annotations

from kernelforge.operators._arguments import Canonical, dim_of, per_input_element, tensor
from kernelforge.operators._targets import eager
from kernelforge.operators.types import Entry, Operator


def _normalise(bound: dict[str, object]) -> Canonical:
    bound["dim"] = dim_of(bound["dim"], tensor(bound["input"]).dim())
    return bound


OPERATOR = Operator(
    name="cumsum",
    arguments=("input", "dim", "dtype"),
    entries=(
        Entry(target="torch.cumsum", parameters="(input, dim, *, dtype=None)"),
        Entry(target="torch.Tensor.cumsum", parameters="(input, /, dim, *, dtype=None)"),
        Entry(target="torch.ops.aten.cumsum.default", parameters="(input, /, dim, *, dtype=None)"),
    ),
    normalise=_normalise,
    call=eager("torch.cumsum"),
    flops=per_input_element(1),
    reduction=True,
)
