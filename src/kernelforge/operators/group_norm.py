"""Mean 0 and variance 1 over each group of channels (dim 1) of a sample, then weight and bias per channel."""

from __future__ import annotations

from kernelforge.operators._arguments import Canonical, as_float, as_int, per_element, pick
from kernelforge.operators._targets import eager
from kernelforge.operators.types import Entry, Operator


def _normalise(bound: dict[str, object]) -> Canonical:
    bound["num_groups"] = as_int(bound["num_groups"])
    bound["eps"] = as_float(bound["eps"])
    return pick(bound, "input", "num_groups", "weight", "bias", "eps")


_PARAMETERS = "num_groups, weight=None, bias=None, eps=1e-05"

OPERATOR = Operator(
    name="group_norm",
    arguments=("input", "num_groups", "weight", "bias", "eps"),
    entries=(
        Entry(target="torch.nn.functional.group_norm", parameters=f"(input, {_PARAMETERS})"),
        Entry(target="torch.group_norm", parameters=f"(input, {_PARAMETERS}, cudnn_enabled=True)"),
        Entry(target="torch.ops.aten.group_norm.default", parameters=f"(input, /, {_PARAMETERS}, cudnn_enabled=True)"),
    ),
    normalise=_normalise,
    call=eager("torch.nn.functional.group_norm"),
    flops=per_element(8),
    family="group_norm",
    reduction=True,
)
