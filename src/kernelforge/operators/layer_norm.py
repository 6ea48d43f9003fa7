"""Mean 0 and variance 1 over the trailing dims, then weight and bias of the shape `normalized_shape` (or None)."""

from __future__ import annotations

from kernelforge.operators._arguments import Canonical, as_float, ints, per_element, pick
from kernelforge.operators._targets import eager
from kernelforge.operators.types import Entry, Operator


def _normalise(bound: dict[str, object]) -> Canonical:
    bound["normalized_shape"] = ints(bound["normalized_shape"])
    bound["eps"] = as_float(bound["eps"])
    return pick(bound, "input", "normalized_shape", "weight", "bias", "eps")


OPERATOR = Operator(
    name="layer_norm",
    arguments=("input", "normalized_shape", "weight", "bias", "eps"),
    entries=(
        Entry(
            target="torch.nn.functional.layer_norm",
            parameters="(input, normalized_shape, weight=None, bias=None, eps=1e-05)",
        ),
        Entry(
            target="torch.layer_norm",
            parameters="(input, normalized_shape, weight=None, bias=None, eps=1e-05, cudnn_enable=True)",
        ),
        Entry(
            target="torch.ops.aten.layer_norm.default",
            parameters="(input, /, normalized_shape, weight=None, bias=None, eps=1e-05, cudnn_enable=True)",
        ),
    ),
    normalise=_normalise,
    call=eager("torch.nn.functional.layer_norm"),
    flops=per_element(8),
    family="emitter",
    varying_ints=("normalized_shape",),
    reduction=True,
)
