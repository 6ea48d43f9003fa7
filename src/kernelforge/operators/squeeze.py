"""Without the dims of size 1 (all of them, or those among `dim`)."""

from __future__ import annotations

from kernelforge.operators._arguments import Canonical, dims_of, shape_of
from kernelforge.operators._views import view
from kernelforge.operators.types import Entry


def _normalise(bound: dict[str, object]) -> Canonical:
    shape = shape_of(bound["input"])
    dims = dims_of(bound["dim"], len(shape))
    return {"input": bound["input"], "dim": tuple(d for d in dims if shape[d : d + 1] == (1,))}


OPERATOR = view(
    "squeeze",
    ("input", "dim"),
    (
        Entry(target="torch.squeeze", parameters="(input, dim=None)"),
        Entry(target="torch.Tensor.squeeze", parameters="(input, /, dim=None)"),
    ),
    _normalise,
)
