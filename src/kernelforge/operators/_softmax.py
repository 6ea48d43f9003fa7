"""What softmax and log_softmax share."""

from __future__ import annotations

from kernelforge.operators._arguments import Canonical, dim_of, per_element, tensor
from kernelforge.operators._targets import eager
from kernelforge.operators.types import Entry, Operator, Unsupported


def softmax_operator(name: str, *, cost: int) -> Operator:
    """softmax or log_softmax: arguments input [*], dim, dtype (of the computation and the output, or None)."""
    return Operator(
        name=name,
        arguments=("input", "dim", "dtype"),
        entries=(
            Entry(
                target=f"torch.nn.functional.{name}",
                parameters="(input, dim=None, _stacklevel=3, dtype=None)",
                passes_on=True,
            ),
            Entry(target=f"torch.{name}", parameters="(input, dim, dtype=None)"),
            Entry(target=f"torch.Tensor.{name}", parameters="(input, /, dim, dtype=None)"),
            Entry(target=f"torch.special.{name}", parameters="(input, dim, *, dtype=None)"),
            Entry(target=f"torch.ops.aten.{name}.int", parameters="(input, /, dim, dtype=None)"),
            Entry(target=f"torch.ops.aten._{name}.default", parameters="(input, /, dim, half_to_float)"),
        ),
        normalise=_normalise,
        call=eager(f"torch.{name}"),
        flops=per_element(cost),
        family="emitter",
        reduction=True,
    )


def _normalise(bound: dict[str, object]) -> Canonical:
    if bound.get("half_to_float"):
        return Unsupported(reason="half_to_float")
    rank = tensor(bound["input"]).dim()
    dim = bound["dim"]
    if dim is None:
        # The rule that torch.nn.functional applies (and warns of).
        dim = 0 if rank in (0, 1, 3) else 1
    return {"input": bound["input"], "dim": dim_of(dim, rank), "dtype": bound.get("dtype")}
