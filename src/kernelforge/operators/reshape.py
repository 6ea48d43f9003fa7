"""Another shape: a view where strides allow it, else a copy, which is counted as a view all the same."""

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
    "reshape",
    ("input", "shape"),
    (
        Entry(target="torch.reshape", parameters="(input, shape)"),
        Entry(target="torch.Tensor.reshape", parameters="(input, /, *shape)"),
        Entry(target="torch.Tensor.reshape_as", parameters="(input, /, other)"),
    ),
    _normalise,
    call=eager("torch.Tensor.reshape", positional=2),
)
