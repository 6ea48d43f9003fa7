"""The same values, without a gradient."""

from __future__ import annotations

from kernelforge.operators._arguments import Canonical
from kernelforge.operators._views import view
from kernelforge.operators.types import Entry


def _normalise(bound: dict[str, object]) -> Canonical:
    return bound


OPERATOR = view(
    "detach",
    ("input",),
    (
        Entry(target="torch.detach", parameters="(input)"),
        Entry(target="torch.Tensor.detach", parameters="(input, /)"),
    ),
    _normalise,
)
