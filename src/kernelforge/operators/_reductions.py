"""What mean and sum share."""

from __future__ import annotations

from kernelforge.operators._arguments import Canonical, dims_of, per_input_element, tensor
from kernelforge.operators._targets import eager
from kernelforge.operators.types import Entry, Operator


def reduction(name: str, *, overload: str) -> Operator:
    """A reduction over dims: canonical `dim` is a sorted tuple (all dims for None), `dtype` may be None.

    Args:
        name: of the operator.
        overload: torch's name of its direct overload that takes dims.
    """
    parameters = "dim=None, keepdim=False, *, dtype=None"
    return Operator(
        name=name,
        arguments=("input", "dim", "keepdim", "dtype"),
        entries=(
            Entry(target=f"torch.{name}", parameters=f"(input, {parameters})"),
            Entry(target=f"torch.Tensor.{name}", parameters=f"(input, /, {parameters})"),
            Entry(target=f"torch.ops.aten.{name}.{overload}", parameters=f"(input, /, {parameters})"),
            Entry(target=f"torch.ops.aten.{name}.default", parameters="(input, /, *, dtype=None)"),
        ),
        normalise=_normalise,
        call=eager(f"torch.{name}"),
        flops=per_input_element(1),
        family="emitter",
        reduction=True,
    )


def _normalise(bound: dict[str, object]) -> Canonical:
    return {
        "input": bound["input"],
        "dim": dims_of(bound.get("dim"), tensor(bound["input"]).dim()),
        "keepdim": bool(bound.get("keepdim", False)),
        "dtype": bound.get("dtype"),
    }
