"""Dims in another order."""

from __future__ import annotations

from kernelforge.operators._arguments import Canonical, dim_of, tensor, varargs
from kernelforge.operators._views import view
from kernelforge.operators.types import Entry


def _normalise(bound: dict[str, object]) -> Canonical:
    rank = tensor(bound["input"]).dim()
    return {"input": bound["input"], "dims": tuple(dim_of(d, rank) for d in varargs(bound["dims"]))}


OPERATOR = view(
    "permute",
    ("input", "dims"),
    (
        Entry(target="torch.permute", parameters="(input, dims)"),
        Entry(target="torch.Tensor.permute", parameters="(input, /, *dims)"),
    ),
    _normalise,
)
