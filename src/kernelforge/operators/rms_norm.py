"""input over its root mean square of the trailing dims, then weight of the shape `normalized_shape` (or None)."""

from __future__ import annotations

from kernelforge.operators._arguments import Canonical, as_float, ints, per_element, pick, tensor
from kernelforge.operators._targets import eager
from kernelforge.operators.types import Entry, Operator


def _normalise(bound: dict[str, object]) -> Canonical:
    import torch

    bound["normalized_shape"] = ints(bound["normalized_shape"])
    if bound["eps"] is None:
        # torch takes the machine epsilon of the type it accumulates in, not of the input's type.
        double = tensor(bound["input"]).dtype == torch.float64
        bound["eps"] = torch.finfo(torch.float64 if double else torch.float32).eps
    bound["eps"] = as_float(bound["eps"])
    return pick(bound, "input", "normalized_shape", "weight", "eps")


OPERATOR = Operator(
    name="rms_norm",
    arguments=("input", "normalized_shape", "weight", "eps"),
    entries=(
        Entry(target="torch.nn.functional.rms_norm", parameters="(input, normalized_shape, weight=None, eps=None)"),
        Entry(target="torch.rms_norm", parameters="(input, normalized_shape, weight=None, eps=None)"),
        Entry(
            target="torch.ops.aten.rms_norm.default",
            parameters="(input, /, normalized_shape, weight=None, eps=None)",
        ),
    ),
    normalise=_normalise,
    call=eager("torch.nn.functional.rms_norm"),
    flops=per_element(4),
    family="emitter",
    varying_ints=("normalized_shape",),
    reduction=True,
)
