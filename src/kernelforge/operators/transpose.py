"""Two dims swapped."""

from __future__ import annotations

from kernelforge.operators._arguments import Canonical, dim_of, tensor
from kernelforge.operators._views import view
from kernelforge.operators.types import Entry


def _normalise(bound: dict[str, object]) -> Canonical:
    rank = tensor(bound["input"]).dim()
    bound["dim0"], bound["dim1"] = sorted(dim_of(bound[name], rank) for name in ("dim0", "dim1"))
    return bound


OPERATOR = view(
    "transpose",
    ("input", "dim0", "dim1"),
    (
        Entry(target="torch.transpose", parameters="(input, dim0, dim1)"),
        Entry(target="torch.Tensor.transpose", parameters="(input, /, dim0, dim1)"),
        Entry(target="torch.swapaxes", parameters="(input, dim0, dim1, /)"),
        Entry(target="torch.Tensor.swapaxes", parameters="(input, dim0, dim1, /)"),
        Entry(target="torch.t", parameters="(input)", preset={"dim0": 0, "dim1": 1}),
        Entry(target="torch.Tensor.t", parameters="(input, /)", preset={"dim0": 0, "dim1": 1}),
    ),
    _normalise,
)
