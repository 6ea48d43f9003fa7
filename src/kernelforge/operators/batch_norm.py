"""Batch normalisation with running statistics: (input - running_mean) / sqrt(running_var + eps) * weight + bias per
channel (dim 1). With statistics of the batch (training) it changes the running ones, and is not forged.
"""

from __future__ import annotations

from kernelforge.operators._arguments import Canonical, as_float, per_element, pick
from kernelforge.operators._targets import eager
from kernelforge.operators.types import Bound, Domain, Entry, Operator, Unsupported

_FLAT = "(input, weight, bias, running_mean, running_var, training, momentum, eps, cudnn_enabled)"


def _normalise(bound: dict[str, object]) -> Canonical:
    if bound["training"]:
        return Unsupported(reason="training statistics")
    bound["eps"] = as_float(bound["eps"])
    return pick(bound, "input", "running_mean", "running_var", "weight", "bias", "eps")


def _call(arguments: Bound) -> object:
    return _eager({**arguments, "training": False})


_eager = eager("torch.nn.functional.batch_norm")

OPERATOR = Operator(
    name="batch_norm",
    arguments=("input", "running_mean", "running_var", "weight", "bias", "eps"),
    entries=(
        Entry(
            target="torch.nn.functional.batch_norm",
            parameters="(input, running_mean, running_var, weight=None, bias=None, training=False, momentum=0.1, "
            "eps=1e-05)",
        ),
        Entry(target="torch.batch_norm", parameters=_FLAT),
        Entry(target="torch.ops.aten.batch_norm.default", parameters=_FLAT),
    ),
    normalise=_normalise,
    call=_call,
    flops=per_element(2),
    family="emitter",
    domains={"running_var": Domain(kind="positive")},
)
