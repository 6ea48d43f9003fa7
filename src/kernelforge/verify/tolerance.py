"""What an output may be off by. Owns `Expected`: truth, eager's own output, and the limits derived from both.

An element's error is measured against its *scale*: its own magnitude plus its conditioning, that is how far the float64
result moves when every float input moves by one part in a million, per part. So a row whose terms cancel, or a constant
row under a normalisation, may be off by what rounding its inputs explains, and a well-conditioned element may not. The
limit of an element is the larger of what eager itself needs (times a factor) and the floor of the dtype (a few ulps at
the element's scale); the root mean square over all elements is held to a tighter limit, so that one lenient element
buys nothing. Loads torch: import it only where tensors are judged.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

PERTURBATION = 2.0**-20
"""Relative size of the input change by which conditioning is probed: linear, yet far above float64 rounding."""

MANY_TERMS = 2048
"""A reduction of more terms is treated as one of so many: nobody adds a million terms in one chain and is accurate."""

ROW_ELEMENTS = 16
"""Conditioning is averaged over a group of trailing axes with at least so many elements."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Factors:
    """How lenient the limits are, in units of rounding errors and of eager's own error.

    Attributes:
        floor_worst, floor_rms: rounding errors of the arithmetic (float32, or float64 for float64 outputs) that the
            worst element and the root mean square may be off, whatever eager does.
        eager_worst, eager_rms: multiples of eager's own errors that are allowed.
    """

    floor_worst: float
    floor_rms: float
    eager_worst: float
    eager_rms: float


def factors_for(dtype: torch.dtype, *, terms: int) -> Factors:
    """The factors for an output of that dtype whose elements add up `terms` terms (1: no reduction).

    A plain loop that adds many small terms to one large one is off by up to a rounding error for each of them, in
    single elements; over all elements such errors average out, so the root mean square grows slowly. Outputs of 16 bits
    may only differ by their one final rounding. `MANY_TERMS` keeps the limit far from the next lower precision.
    """
    narrow = dtype in (torch.float16, torch.bfloat16)
    counted = min(terms, MANY_TERMS)
    return Factors(
        floor_worst=16.0 if terms <= 1 else 64.0 + counted,
        floor_rms=4.0 if terms <= 1 else 16.0 + math.sqrt(counted) / 4,
        eager_worst=1.5 if narrow else 4.0, eager_rms=1.25 if narrow else 2.0,
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Expected:
    """One output of one case. Never leaves the judge's process.

    Attributes:
        eager: eager's output, in the output's dtype and shape.
        truth: float64 for float outputs; for integer and bool outputs the float64 evaluation's own integers.
        scale: float32, what an element's error is measured against; None for exact outputs.
        limit: float32, largest absolute error of each element; None for exact outputs.
        rms_limit: largest root mean square of error / scale.
        eager_worst, eager_rms: eager's own errors relative to the scale.
        eager_max_abs, eager_rms_abs: the same in the output's own units.
    """

    eager: Tensor
    truth: Tensor
    scale: Tensor | None
    limit: Tensor | None
    rms_limit: float
    eager_worst: float
    eager_rms: float
    eager_max_abs: float = 0.0
    eager_rms_abs: float = 0.0

    @property
    def size_bytes(self) -> int:
        tensors = [t for t in (self.eager, self.truth, self.scale, self.limit) if t is not None]
        return sum(t.numel() * t.element_size() for t in tensors)


def expect(
    eager: Tensor, truth: Tensor, sensitivity: Tensor | None, *, terms: int, shared: bool = True,
    reach: Tensor | None = None,
) -> Expected:  # fmt: skip
    """Derive the limits of one output.

    Args:
        eager: eager's output, any dtype and strides.
        truth: the float64 evaluation (float outputs) or its integers, of the same shape.
        sensitivity: |change of the truth| / `PERTURBATION`, float64, same shape; None for outputs that must be exact.
        terms: how many terms an element adds up; 1 for operators that reduce nothing.
        shared: whether an element's neighbours have its conditioning.
        reach: of an operator whose formula cancels in whatever precision, the magnitude of each element's input.
    """
    if not eager.is_floating_point():
        return Expected(eager=eager, truth=truth, scale=None, limit=None, rms_limit=0.0, eager_worst=0.0, eager_rms=0.0)
    dtype = eager.dtype
    factors = factors_for(dtype, terms=terms)
    finite = truth.isfinite() & eager.isfinite()
    magnitude = torch.where(finite, truth.abs(), 0.0)
    unit = torch.finfo(torch.float64 if dtype == torch.float64 else torch.float32).eps / 2
    error = torch.where(finite, (eager.double() - truth).abs(), 0.0)
    scale = magnitude
    if sensitivity is not None and reach is not None:
        scale = magnitude + torch.maximum(sensitivity, torch.minimum(_smooth(sensitivity), reach))
    elif sensitivity is not None:
        scale = magnitude + (_smooth(sensitivity) if shared else sensitivity)
    rounding = torch.where(finite, _rounding(truth, dtype), 0.0)
    eager_worst, eager_rms = relative(error, scale, tiny=_tiny(dtype))
    _, ideal_rms = relative(rounding, scale, tiny=_tiny(dtype))
    floor = _half_ulp(magnitude, dtype) + factors.floor_worst * unit * scale + _tiny(dtype)
    limit = torch.maximum(floor, factors.eager_worst * eager_worst * scale)
    rms_limit = max(factors.eager_rms * eager_rms, 1.15 * ideal_rms + factors.floor_rms * unit)
    if terms > 1:
        # Equal terms err in one direction: every element is then off by what the worst one may be, or nearly.
        rms_limit = max(rms_limit, factors.floor_worst * unit / 4)
    return Expected(
        eager=eager, truth=truth, scale=scale.float(), limit=_round_up(limit), rms_limit=rms_limit,
        eager_worst=eager_worst, eager_rms=eager_rms,
        eager_max_abs=float(error.max()) if error.numel() else 0.0, eager_rms_abs=root_mean_square(error),
    )  # fmt: skip


def root_mean_square(error: Tensor) -> float:
    """0.0 for no elements."""
    return math.sqrt(float(error.square().mean())) if error.numel() else 0.0


def relative(error: Tensor, scale: Tensor, *, tiny: float) -> tuple[float, float]:
    """Worst and root mean square of error / scale. An error of at most `tiny` is none, whatever its scale."""
    if error.numel() == 0:
        return 0.0, 0.0
    ratio = torch.where(error <= tiny, 0.0, error / scale.to(error.dtype))
    return float(ratio.max()), math.sqrt(float(ratio.square().mean()))


def tiny_of(dtype: torch.dtype) -> float:
    """The absolute error that is always allowed: kernels may flush subnormal numbers to zero."""
    return _tiny(dtype)


def _tiny(dtype: torch.dtype) -> float:
    info = torch.finfo(dtype)
    # Twice, because exp of the least argument that does not flush is a little above the smallest normal number.
    return info.smallest_normal * info.eps / 2 if dtype == torch.float16 else 2 * info.smallest_normal


def _half_ulp(magnitude: Tensor, dtype: torch.dtype) -> Tensor:
    """The error of one correct rounding to a dtype narrower than the arithmetic; nothing for the others."""
    if dtype not in (torch.float16, torch.bfloat16):
        return torch.zeros_like(magnitude)
    return magnitude * (torch.finfo(dtype).eps / 2 * 1.001)


def _rounding(truth: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.nan_to_num((truth.to(dtype).double() - truth).abs(), nan=0.0, posinf=0.0, neginf=0.0)


def _round_up(limit: Tensor) -> Tensor:
    """float64 -> float32 without making any limit smaller."""
    return limit.float() * (1.0 + 2.0**-22)


def _smooth(sensitivity: Tensor) -> Tensor:
    """Replace an element's sensitivity by its group's root mean square where that is larger.

    One random perturbation may leave an element unmoved by chance, its neighbours in the row rarely too.
    """
    if sensitivity.numel() == 0:
        return sensitivity
    axes, count = [], 1
    for axis in range(sensitivity.dim() - 1, -1, -1):
        axes.append(axis)
        count *= sensitivity.shape[axis]
        if count >= ROW_ELEMENTS:
            break
    if not axes:
        return sensitivity
    return torch.maximum(sensitivity, sensitivity.square().mean(axes, keepdim=True).sqrt())
