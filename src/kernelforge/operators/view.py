"""The same memory under another shape."""

from __future__ import annotations

from kernelforge.operators._arguments import Canonical, shape_of, varargs
from kernelforge.operators._targets import eager
from kernelforge.operators._views import sizes, view
from kernelforge.operators.types import Entry


def _normalise(bound: dict[str, object]) -> Canonical:
    if "other" in bound:
        return {"input": bound["input"], "shape": shape_of(bound["other"])}
    return {"input": bound["input"], "shape": sizes(varargs(bound["shape"]), shape_of(bound["input"]))}


OPERATOR = view(
    "view",
    ("input", "shape"),
    (
        Entry(target="torch.Tensor.view", parameters="(input, /, *shape)"),
        Entry(target="torch.Tensor.view_as", parameters="(input, /, other)"),
    ),
    _normalise,
    call=eager("torch.Tensor.view", positional=2),
)
