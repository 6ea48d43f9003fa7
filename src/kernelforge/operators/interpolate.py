"""Resampling of the dims after the first two to `size`, or by `scale_factor`: exactly one of them is given.

The scale is kept as the caller gave it, since eager samples by it and not by the ratio of the sizes.
"""

from __future__ import annotations

from collections.abc import Sequence

from kernelforge.operators._arguments import Canonical, as_float, concrete_tensor, ints, pick, tensor
from kernelforge.operators._targets import eager
from kernelforge.operators.types import ConcreteArguments, Entry, Operator, TensorShape

_ARGUMENTS = ("input", "size", "scale_factor", "mode", "align_corners", "recompute_scale_factor", "antialias")
_TAPS = {"nearest": 1, "nearest-exact": 1, "linear": 2, "bilinear": 4, "trilinear": 8, "bicubic": 16}
_PARAMETERS = "(input, size=None, scale_factor=None, mode='nearest', align_corners=None"


def _normalise(bound: dict[str, object]) -> Canonical:
    rank = tensor(bound["input"]).dim() - 2
    if bound["size"] is not None:
        bound["size"] = ints(bound["size"], rank)
    scale = bound["scale_factor"]
    if scale is not None:
        factors = tuple(as_float(v) for v in scale) if isinstance(scale, Sequence) else (as_float(scale),) * rank
        bound["scale_factor"] = factors
    if bound["align_corners"] is None and bound["mode"] in ("linear", "bilinear", "trilinear", "bicubic"):
        bound["align_corners"] = False
    bound["recompute_scale_factor"] = bool(bound.get("recompute_scale_factor"))
    bound["antialias"] = bool(bound.get("antialias"))
    return pick(bound, *_ARGUMENTS)


def _flops(arguments: ConcreteArguments, outputs: tuple[TensorShape, ...]) -> int:
    return max(1, 2 * outputs[0].elements * _TAPS.get(str(arguments["mode"]), 1))


def _bytes_read(arguments: ConcreteArguments) -> int:
    """Of a nearest-neighbour downscale only the sampled pixels; else all of the input."""
    source = concrete_tensor(arguments, "input")
    if _TAPS.get(str(arguments["mode"])) != 1:
        return source.size_bytes
    size, scale = arguments["size"], arguments["scale_factor"]
    share = 1.0
    for position, own in enumerate(source.shape[2:]):
        if isinstance(size, tuple):
            share *= min(1.0, as_float(size[position]) / max(own, 1))
        elif isinstance(scale, tuple):
            share *= min(1.0, as_float(scale[position]))
    return int(source.size_bytes * share)


OPERATOR = Operator(
    name="interpolate",
    arguments=_ARGUMENTS,
    entries=(
        Entry(
            target="torch.nn.functional.interpolate",
            parameters=f"{_PARAMETERS}, recompute_scale_factor=None, antialias=False)",
        ),
        Entry(target="torch.nn.functional.upsample", parameters=f"{_PARAMETERS})"),
    ),
    normalise=_normalise,
    call=eager("torch.nn.functional.interpolate"),
    flops=_flops,
    bytes_read=_bytes_read,
    family="interpolate",
    varying_ints=("size",),
)
