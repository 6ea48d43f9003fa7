"""Equal pieces along a dim (the last may be shorter)."""

from __future__ import annotations

from kernelforge.operators._arguments import Canonical, dim_of, tensor
from kernelforge.operators._views import view
from kernelforge.operators.types import Entry


def _normalise(bound: dict[str, object]) -> Canonical:
    bound["dim"] = dim_of(bound["dim"], tensor(bound["input"]).dim())
    return bound


OPERATOR = view(
    "chunk",
    ("input", "chunks", "dim"),
    (
        Entry(target="torch.chunk", parameters="(input, chunks, dim=0)"),
        Entry(target="torch.Tensor.chunk", parameters="(input, /, chunks, dim=0)"),
    ),
    _normalise,
)
