"""What conv1d and conv2d share."""

from __future__ import annotations

from collections.abc import Callable

from kernelforge.operators._arguments import Canonical, as_int, ints, pick, shape_of
from kernelforge.operators._products import LEAST_OF_CONVOLUTION, convolution_bytes, convolution_flops
from kernelforge.operators._targets import eager
from kernelforge.operators.types import Entry, Operator

_ARGUMENTS = ("input", "weight", "bias", "stride", "padding", "dilation", "groups")
_PARAMETERS = "weight, bias=None, stride=1, padding=0, dilation=1, groups=1"


def convolution(name: str, rank: int) -> Operator:
    """A convolution over `rank` spatial dims: input [N, in, *spatial] or without N, weight [out, in / groups, *kernel].

    The canonical padding is a tuple of integers, or "same" where the two sides differ.
    """
    return Operator(
        name=name,
        arguments=_ARGUMENTS,
        entries=(
            Entry(target=f"torch.nn.functional.{name}", parameters=f"(input, {_PARAMETERS})"),
            Entry(target=f"torch.{name}", parameters=f"(input, {_PARAMETERS})"),
            Entry(target=f"torch.ops.aten.{name}.default", parameters=f"(input, /, {_PARAMETERS})"),
            Entry(target=f"torch.ops.aten.{name}.padding", parameters=f"(input, /, {_PARAMETERS})"),
        ),
        normalise=_normalise(rank),
        call=eager(f"torch.nn.functional.{name}"),
        flops=convolution_flops,
        least_flops=LEAST_OF_CONVOLUTION,
        bytes_read=convolution_bytes,
        provider="vendor",
        reduction=True,
    )


def _normalise(rank: int) -> Callable[[dict[str, object]], Canonical]:
    def normalise(bound: dict[str, object]) -> Canonical:
        for name in ("stride", "dilation"):
            bound[name] = ints(bound[name], rank)
        bound["padding"] = _padding(bound, rank)
        bound["groups"] = as_int(bound["groups"])
        return pick(bound, *_ARGUMENTS)

    return normalise


def _padding(bound: dict[str, object], rank: int) -> tuple[int, ...] | str:
    padding = bound["padding"]
    if padding == "valid":
        return (0,) * rank
    if padding != "same":
        return ints(padding, rank)
    kernel = shape_of(bound["weight"])[2:]
    totals = [d * (k - 1) for d, k in zip(ints(bound["dilation"], rank), kernel, strict=True)]
    return tuple(t // 2 for t in totals) if all(t % 2 == 0 for t in totals) else "same"
