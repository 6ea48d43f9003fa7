"""`length` indices from `start` along a dim."""

from __future__ import annotations

from kernelforge.operators._arguments import Canonical, as_int, dim_of, shape_of
from kernelforge.operators._views import view
from kernelforge.operators.types import Entry


def _normalise(bound: dict[str, object]) -> Canonical:
    shape = shape_of(bound["input"])
    dim, start = dim_of(bound["dim"], len(shape)), as_int(bound["start"])
    bound["dim"], bound["start"] = dim, start + shape[dim] if start < 0 else start
    return bound


OPERATOR = view(
    "narrow",
    ("input", "dim", "start", "length"),
    (
        Entry(target="torch.narrow", parameters="(input, dim, start, length)"),
        Entry(target="torch.Tensor.narrow", parameters="(input, /, dim, start, length)"),
    ),
    _normalise,
)
