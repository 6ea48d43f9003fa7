"""Whether two runs of a model say the same: outputs compared by what rounding in another order explains."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

OUTPUT_TOLERANCE: Mapping[str, float] = {"float64": 1e-6, "float32": 1e-3, "float16": 2e-2, "bfloat16": 5e-2}
"""Largest absolute difference over eager's largest magnitude; what rounding in another order explains after dozens of
layers, and far below what a wrong kernel does."""


def compare_outputs(
    want: Sequence[torch.Tensor], got: Sequence[torch.Tensor]
) -> tuple[float, float, bool, bool | None]:
    """Largest absolute difference, the same over eager's largest magnitude, whether all match, and for integer outputs
    (tokens) whether they are equal; None if there are none.
    """
    max_abs = relative = 0.0
    matches = len(want) == len(got)
    tokens: bool | None = None
    for a, b in zip(want, got, strict=False):
        if a.shape != b.shape or a.dtype != b.dtype:
            return float("inf"), float("inf"), False, False if tokens is not None else None
        if not a.dtype.is_floating_point:
            tokens = bool((a == b).all()) and tokens is not False
            matches = matches and tokens
            continue
        wide_a, wide_b = a.double(), b.double()
        same = (wide_a == wide_b) | (wide_a.isnan() & wide_b.isnan())
        difference = float((wide_a - wide_b).abs().masked_fill(same, 0.0).max()) if a.numel() else 0.0
        finite = wide_a[wide_a.isfinite()]
        scale = float(finite.abs().max()) if finite.numel() else 1.0
        share = difference / max(scale, 1e-30)
        max_abs, relative = max(max_abs, difference), max(relative, share)
        # Not `share > ...`: of NaN where eager has a number, nothing is true.
        matches = matches and share <= OUTPUT_TOLERANCE.get(str(a.dtype).removeprefix("torch."), 0.0)
    return max_abs, relative, matches, tokens


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """The tensors of a model's output, through mappings, tuples and lists, in order."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from tensors_in(item)
    elif isinstance(value, tuple | list):
        for item in value:
            yield from tensors_in(item)
