"""Mean over output_size regions of the last two dims; a size that is None is the input's own."""

from __future__ import annotations

from collections.abc import Sequence

from kernelforge.operators._arguments import Canonical, as_int, per_input_element, shape_of
from kernelforge.operators._targets import eager
from kernelforge.operators.types import Entry, Operator


def _normalise(bound: dict[str, object]) -> Canonical:
    spatial, size = shape_of(bound["input"])[-2:], bound["output_size"]
    items = tuple(size) if isinstance(size, Sequence) else (size, size)
    resolved = tuple(own if item is None else as_int(item) for own, item in zip(spatial, items, strict=True))
    return {"input": bound["input"], "output_size": resolved}


OPERATOR = Operator(
    name="adaptive_avg_pool2d",
    arguments=("input", "output_size"),
    entries=(
        Entry(target="torch.nn.functional.adaptive_avg_pool2d", parameters="(input, output_size)"),
        Entry(target="torch.ops.aten.adaptive_avg_pool2d.default", parameters="(input, /, output_size)"),
    ),
    normalise=_normalise,
    call=eager("torch.nn.functional.adaptive_avg_pool2d"),
    flops=per_input_element(1),
    family="pool",
    varying_ints=("output_size",),
    reduction=True,
)
