"""Pieces of given sizes along a dim: one size for all, or a tuple."""

from __future__ import annotations

from collections.abc import Sequence

from kernelforge.operators._arguments import Canonical, as_int, dim_of, tensor
from kernelforge.operators._views import view
from kernelforge.operators.types import Entry


def _normalise(bound: dict[str, object]) -> Canonical:
    source, size = bound["tensor"], bound.get("split_size", bound.get("split_size_or_sections"))
    split = tuple(as_int(s) for s in size) if isinstance(size, Sequence) else as_int(size)
    return {"input": source, "split_size": split, "dim": dim_of(bound["dim"], tensor(source).dim())}


OPERATOR = view(
    "split",
    ("input", "split_size", "dim"),
    (
        Entry(target="torch.split", parameters="(tensor, split_size_or_sections, dim=0)"),
        Entry(target="torch.Tensor.split", parameters="(tensor, /, split_size, dim=0)"),
        Entry(target="torch.Tensor.split_with_sizes", parameters="(tensor, /, split_size, dim=0)"),
    ),
    _normalise,
)
