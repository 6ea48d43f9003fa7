"""Dims of size 1 repeated without a copy; new dims in front."""

from __future__ import annotations

from kernelforge.operators._arguments import Canonical, as_int, shape_of, varargs
from kernelforge.operators._targets import eager
from kernelforge.operators._views import view
from kernelforge.operators.types import Entry


def _normalise(bound: dict[str, object]) -> Canonical:
    own = shape_of(bound["input"])
    if "other" in bound:
        return {"input": bound["input"], "size": shape_of(bound["other"])}
    size = varargs(bound["size"])
    own = (1,) * (len(size) - len(own)) + own
    return {"input": bound["input"], "size": tuple(o if s == -1 else as_int(s) for o, s in zip(own, size, strict=True))}


OPERATOR = view(
    "expand",
    ("input", "size"),
    (
        Entry(target="torch.Tensor.expand", parameters="(input, /, *size)"),
        Entry(target="torch.Tensor.expand_as", parameters="(input, /, other)"),
    ),
    _normalise,
    call=eager("torch.Tensor.expand", positional=2),
)
