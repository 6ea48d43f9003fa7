"""One dim made several."""

from __future__ import annotations

from kernelforge.operators._arguments import Canonical, dim_of, shape_of, varargs
from kernelforge.operators._views import sizes, view
from kernelforge.operators.types import Entry


def _normalise(bound: dict[str, object]) -> Canonical:
    shape = shape_of(bound["input"])
    dim, wanted = dim_of(bound["dim"], len(shape)), varargs(bound["sizes"])
    return {"input": bound["input"], "dim": dim, "sizes": sizes(wanted, shape[dim : dim + 1])}


OPERATOR = view(
    "unflatten",
    ("input", "dim", "sizes"),
    (
        Entry(target="torch.unflatten", parameters="(input, dim, sizes)"),
        Entry(target="torch.Tensor.unflatten", parameters="(input, /, dim, sizes)"),
    ),
    _normalise,
)
