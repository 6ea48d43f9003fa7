"""Dims from start_dim to end_dim made one; a copy where strides do not allow a view."""

from __future__ import annotations

from kernelforge.operators._arguments import Canonical, dim_of, tensor
from kernelforge.operators._views import view
from kernelforge.operators.types import Entry


def _normalise(bound: dict[str, object]) -> Canonical:
    rank = tensor(bound["input"]).dim()
    for name in ("start_dim", "end_dim"):
        bound[name] = dim_of(bound[name], rank)
    return bound


OPERATOR = view(
    "flatten",
    ("input", "start_dim", "end_dim"),
    (
        Entry(target="torch.flatten", parameters="(input, start_dim=0, end_dim=-1)"),
        Entry(target="torch.Tensor.flatten", parameters="(input, /, start_dim=0, end_dim=-1)"),
    ),
    _normalise,
)
