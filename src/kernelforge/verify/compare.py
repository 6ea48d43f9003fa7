"""The pure judge of one output: metadata first, then class by class, then errors. No device choice, files or clock.

Owns `compare` and the words in which an error is described to whoever repairs the candidate. Loads torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from kernelforge.verify.tolerance import Expected, relative, root_mean_square, tiny_of
from kernelforge.verify.types import ErrorStatistics, RejectReason


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """The output is right. bitwise: it equals eager's bit for bit; worst, rms: errors relative to the scale."""

    statistics: ErrorStatistics
    worst: float
    rms: float
    bitwise: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Mismatch:
    """The output is wrong: a sentence for the repair, and the largest absolute error where it has a meaning."""

    reason: RejectReason
    detail: str
    worst_abs: float | None = None


Comparison: TypeAlias = "Match | Mismatch"

ONE_SIDED_LEAST = 32
"""So many errors of one sign are no rounding: part of the work is left out, or done twice."""

EXACT = ErrorStatistics(max_abs=0.0, rms=0.0, eager_max_abs=0.0, eager_rms=0.0)


def compare(expected: Expected, got: Tensor, *, emulations: Sequence[Tensor] = ()) -> Comparison:
    """Judge one output of a candidate.

    Args:
        expected: truth, eager's output and the limits.
        got: the candidate's output; shape and dtype are compared first, strides are the caller's business.
        emulations: what the operator gives in the next lower precisions, same shape; they only decide which of two
            reasons a wrong output gets.

    Returns:
        Match, or Mismatch with the first failing check. Never raises on a bad candidate.
    """
    want = expected.eager
    if got.shape != want.shape or got.dtype != want.dtype:
        detail = f"the output is {list(got.shape)} {got.dtype}, it must be {list(want.shape)} {want.dtype}"
        return Mismatch(reason=RejectReason.WRONG_META, detail=detail)
    if expected.scale is None or expected.limit is None:
        return _compare_exact(expected, got)
    if same_bits(got, want):
        statistics = _statistics(expected, expected.eager_max_abs, expected.eager_rms_abs)
        return Match(statistics=statistics, worst=expected.eager_worst, rms=expected.eager_rms, bitwise=True)
    return _compare_classes(expected, got) or _compare_errors(expected, got, emulations)


def same_bits(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors of one shape and dtype hold the same bits (NaNs equal themselves)."""
    width = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[a.element_size()]
    return torch.equal(a.contiguous().view(width), b.contiguous().view(width))


def _compare_exact(expected: Expected, got: Tensor) -> Comparison:
    right = (got == expected.eager) | (got == expected.truth)
    if bool(right.all()):
        bitwise = torch.equal(got, expected.eager)
        return Match(statistics=EXACT, worst=0.0, rms=0.0, bitwise=bitwise)
    bad = ~right
    where = first_index(bad)
    detail = (
        f"element {list(where)} is {got[where].item()}, it must be exactly {expected.eager[where].item()}; "
        f"{describe_places(bad)}"
    )
    return Mismatch(reason=RejectReason.WRONG_VALUE, detail=detail)


def _classes(values: Tensor) -> Tensor:
    """0 finite, 1 nan, 2 +inf, 3 -inf."""
    kinds = values.isnan().to(torch.int8)
    infinite = values.isinf()
    kinds[infinite & (values > 0)] = 2
    kinds[infinite & (values < 0)] = 3
    return kinds


def _compare_classes(expected: Expected, got: Tensor) -> Mismatch | None:
    """Each element must be of the truth's class or of eager's: neither overflow nor its absence is held against it."""
    want, rounded = expected.eager, expected.truth.to(got.dtype)
    if bool(got.isfinite().all()) and bool(want.isfinite().all()) and bool(rounded.isfinite().all()):
        return None
    kinds = _classes(got)
    bad = (kinds != _classes(rounded)) & (kinds != _classes(want))
    if not bool(bad.any()):
        return None
    where = first_index(bad)
    detail = (
        f"element {list(where)} is {_show(got[where])}, it must be {_show(want[where])} "
        f"(finite, nan, inf and -inf must agree with eager); in this respect {describe_places(bad)}"
        f"{_class_hint(got, bad)}; the values of the others are not compared before this is mended"
    )
    return Mismatch(reason=RejectReason.WRONG_VALUE, detail=detail)


def _class_hint(got: Tensor, bad: Tensor) -> str:
    wrong = got[bad]
    if bool(wrong.isnan().all()):
        return (
            "; all of them are nan: not written at all, read beyond an input, 0/0, or inf/inf and inf-inf after an "
            "overflow (exp without subtracting the maximum?)"
        )
    if bool(wrong.isinf().all()):
        return (
            "; all of them are infinite: a start value that stays, or an overflow (exp of a large number, 16-bit sums?)"
        )
    if bool(wrong.isfinite().all()):
        return "; nan or inf of the input is lost there (a comparison drops nan; use !(a <= b) or fmax with care)"
    return ""


def _compare_errors(expected: Expected, got: Tensor, emulations: Sequence[Tensor]) -> Comparison:
    assert expected.scale is not None and expected.limit is not None
    # Where eager's class is not the truth's, the truth is no number to compare with: eager's own value then is.
    target = torch.where(expected.truth.isfinite(), expected.truth, expected.eager.double())
    finite = got.isfinite() & target.isfinite()
    signed = torch.where(finite, got.double() - target, 0.0)
    error = signed.abs()
    tiny = tiny_of(got.dtype)
    worst, rms = relative(error, expected.scale, tiny=tiny)
    statistics = _statistics(expected, float(error.max()) if error.numel() else 0.0, root_mean_square(error))
    match = Match(statistics=statistics, worst=worst, rms=rms, bitwise=False)
    if worst <= expected.eager_worst and rms <= expected.eager_rms:
        return match
    bad = error > expected.limit
    if not bool(bad.any()) and rms <= expected.rms_limit:
        return match
    if not bool(bad.any()):
        bad = error > expected.rms_limit * expected.scale
    where = first_index(bad)
    detail = (
        f"element {list(where)} is {_show(got[where])}, it must be {_show(expected.truth[where])} "
        f"(off by {float(error[where]):.3g}, allowed {float(expected.limit[where]):.3g}); "
        f"{describe_places(bad)}; error relative to the scale: rms {rms:.2g} (allowed {expected.rms_limit:.2g})"
    )
    if _explained(expected, signed, rms, worst, emulations):
        reason = RejectReason.PRECISION_DOWNGRADE
        detail += "; the errors are those of arithmetic in a lower precision: compute and accumulate in float32"
    else:
        reason = RejectReason.WRONG_VALUE
    return Mismatch(reason=reason, detail=detail, worst_abs=statistics.max_abs)


def _statistics(expected: Expected, max_abs: float, rms: float) -> ErrorStatistics:
    return ErrorStatistics(
        max_abs=max_abs, rms=rms, eager_max_abs=expected.eager_max_abs, eager_rms=expected.eager_rms_abs
    )


def _explained(expected: Expected, signed: Tensor, rms: float, worst: float, emulations: Sequence[Tensor]) -> bool:
    """Whether a lower precision makes such errors: at most some times an emulation's, widely spread, of both signs."""
    assert expected.scale is not None
    off = signed.abs() > expected.rms_limit * expected.scale / 2
    count, nonzero = int(off.sum()), int((expected.scale > 0).sum())
    if count < max(1, nonzero // 50):
        return False
    too_large = int((signed[off] > 0).sum())
    if count >= ONE_SIDED_LEAST and not count // 20 <= too_large <= count - count // 20:
        return False
    for emulation in emulations:
        lost = (emulation.double() - expected.truth).abs().nan_to_num(nan=0.0, posinf=0.0)
        emulated_worst, emulated_rms = relative(lost, expected.scale, tiny=tiny_of(expected.eager.dtype))
        if rms <= 4 * emulated_rms and worst <= 8 * emulated_worst:
            return True
    return False


def first_index(bad: Tensor) -> tuple[int, ...]:
    """Index of the first true element, in row-major order."""
    flat = int(bad.reshape(-1).to(torch.uint8).argmax())
    index = []
    for size in reversed(bad.shape):
        index.append(flat % size)
        flat //= size
    return tuple(reversed(index))


def describe_places(bad: Tensor) -> str:
    """Where the wrong elements sit, in words: how many, and the pattern if there is a plain one."""
    count, total = int(bad.sum()), bad.numel()
    text = f"{count} of {total} elements are wrong"
    if count == total:
        return text + " (all)"
    if bad.dim() == 0 or count < 2:
        return text
    pattern = _axis_pattern(bad) or _period_pattern(bad)
    return f"{text} ({pattern})" if pattern else text


def _axis_pattern(bad: Tensor) -> str:
    """Wrong elements that fill a range of indices along one axis."""
    for axis in range(bad.dim() - 1, -1, -1):
        size = bad.shape[axis]
        others = [a for a in range(bad.dim()) if a != axis]
        touched = bad.any(dim=others) if others else bad
        hit = int(touched.sum())
        if hit == size:
            continue
        indices = touched.nonzero().flatten()
        low, high = int(indices[0]), int(indices[-1])
        if high - low + 1 == hit:
            where = f"indices {low}..{high} of {size} along axis {axis}" if hit > 1 else f"index {low} of axis {axis}"
            return where + (": the tail" if high == size - 1 and low > 0 else "")
    return ""


def _period_pattern(bad: Tensor) -> str:
    """Every k-th element of the flattened output."""
    indices = bad.reshape(-1).nonzero().flatten()
    steps = indices[1:] - indices[:-1]
    step = int(steps[0])
    if step > 1 and bool((steps == step).all()):
        return f"every {step}th element, from {int(indices[0])}"
    if step == 1 and int(indices[-1] - indices[0]) + 1 == len(indices):
        return f"flat elements {int(indices[0])}..{int(indices[-1])}"
    return ""


def _show(value: Tensor) -> str:
    return f"{float(value):.7g}"
