"""All indices of a dim, as a tuple."""

from __future__ import annotations

from kernelforge.operators._arguments import Canonical, dim_of, tensor
from kernelforge.operators._views import view
from kernelforge.operators.types import Entry


def _normalise(bound: dict[str, object]) -> Canonical:
    bound["dim"] = dim_of(bound["dim"], tensor(bound["input"]).dim())
    return bound


OPERATOR = view(
    "unbind",
    ("input", "dim"),
    (
        Entry(target="torch.unbind", parameters="(input, dim=0)"),
        Entry(target="torch.Tensor.unbind", parameters="(input, /, dim=0)"),
    ),
    _normalise,
)
