"""A new dim of size 1."""

from __future__ import annotations

from kernelforge.operators._arguments import Canonical, dim_of, tensor
from kernelforge.operators._views import view
from kernelforge.operators.types import Entry


def _normalise(bound: dict[str, object]) -> Canonical:
    bound["dim"] = dim_of(bound["dim"], tensor(bound["input"]).dim() + 1)
    return bound


OPERATOR = view(
    "unsqueeze",
    ("input", "dim"),
    (
        Entry(target="torch.unsqueeze", parameters="(input, dim)"),
        Entry(target="torch.Tensor.unsqueeze", parameters="(input, /, dim)"),
    ),
    _normalise,
)
