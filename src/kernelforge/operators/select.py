"""One index along a dim, which goes away."""

from __future__ import annotations

from kernelforge.operators._arguments import Canonical, dim_of, shape_of
from kernelforge.operators._views import view
from kernelforge.operators.types import Entry


def _normalise(bound: dict[str, object]) -> Canonical:
    shape = shape_of(bound["input"])
    dim = dim_of(bound["dim"], len(shape))
    return {"input": bound["input"], "dim": dim, "index": dim_of(bound["index"], shape[dim])}


OPERATOR = view(
    "select",
    ("input", "dim", "index"),
    (
        Entry(target="torch.select", parameters="(input, dim, index)"),
        Entry(target="torch.Tensor.select", parameters="(input, /, dim, index)"),
    ),
    _normalise,
)
