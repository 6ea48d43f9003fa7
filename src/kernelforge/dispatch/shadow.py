"""Shadow mode: every N-th hit of a kernel is computed by PyTorch too, and the two are compared. Owns `Shadow`.

It looks for what no certificate can have seen: inputs of the live model. What the call returns never changes. Two
results agree where every element differs by at most a tolerance of its dtype times (its magnitude + the root mean
square of eager's result); NaN agrees with NaN, infinities and whole numbers only with the same. This is a far simpler
rule than the judge's: it tells a wrong kernel from rounding, and not more.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from kernelforge.cards.types import Variant
from kernelforge.dispatch.types import ShadowRow
from kernelforge.errors import UsageError

_LOG = logging.getLogger(__name__)

TOLERANCE: Mapping[torch.dtype, float] = {
    torch.float64: 1e-9, torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 4e-2,
}  # fmt: skip


def share(text: str) -> int:
    """N of "1/N", the share of hits to look at; 1 of "1", 0 of nothing.

    Raises:
        UsageError: it is neither.
    """
    if text in ("", "0"):
        return 0
    found = re.fullmatch(r"1(?:/([1-9]\d*))?", text)
    if found is None:
        raise UsageError(f"KFORGE_SHADOW is {text!r}", hint="give the share of hits to compare: 1/100, say")
    return int(found[1] or 1)


@dataclass(slots=True)
class _Seen:
    """As `ShadowRow`; hits: since the last compared call."""

    compared: int = 0
    differing: int = 0
    largest: float = 0.0
    hits: int = 0


class Shadow:
    """Counts hits and compares results for the entries of one package; counts may be a little off among threads.

    Args:
        every: N, at least 1.
    """

    def __init__(self, every: int) -> None:
        self._every = every
        self._entries: dict[str, _Seen] = {}

    def seen(self, variant_id: str) -> ShadowRow:
        """What has been seen of an entry so far."""
        seen = self._of(variant_id)
        return ShadowRow(compared=seen.compared, differing=seen.differing, largest=seen.largest)

    def _of(self, variant_id: str) -> _Seen:
        return self._entries.setdefault(variant_id, _Seen())

    def is_due(self, variant_id: str) -> bool:
        """Count a hit; whether it is one to compare."""
        entry = self._of(variant_id)
        entry.hits += 1
        if entry.hits < self._every:
            return False
        entry.hits = 0
        return True

    def compare(self, variant_id: str, variant: Variant, got: object, want: object) -> None:
        """Compare a kernel's result with eager's; the log tells of the first difference of each entry."""
        seen = self._of(variant_id)
        seen.compared += 1
        difference, agrees = compare(got, want)
        seen.largest = max(seen.largest, difference)
        if agrees:
            return
        seen.differing += 1
        if seen.differing == 1:
            # Logged: a warning may be an error, and shadow mode must not change what a call does.
            _LOG.warning(
                "shadow: the kernel of %s differs from eager by up to %.3g (compared call %d); further ones are "
                "only counted",
                variant.label, difference, seen.compared,
            )  # fmt: skip


def compare(got: object, want: object) -> tuple[float, bool]:
    """Largest absolute difference of an element, infinity where there is none to tell, and whether the two agree."""
    if not isinstance(got, torch.Tensor) or not isinstance(want, torch.Tensor):
        return float("inf"), False
    if (got.shape, got.dtype, got.device) != (want.shape, want.dtype, want.device):
        return float("inf"), False
    if not got.numel():
        return 0.0, True
    with torch.no_grad():
        return _compare(got, want)


def _compare(got: torch.Tensor, want: torch.Tensor) -> tuple[float, bool]:
    # By operator overloads: functions and methods of torch may be replaced just now, by ours.
    aten = torch.ops.aten
    tolerance = TOLERANCE.get(got.dtype)
    if tolerance is None and torch.equal(got, want):
        return 0.0, True
    ours, eager = aten._to_copy.default(got, dtype=torch.float64), aten._to_copy.default(want, dtype=torch.float64)
    both_nan = aten.logical_and.default(aten.isnan.default(ours), aten.isnan.default(eager))
    same = aten.logical_or.default(aten.eq.Tensor(ours, eager), both_nan)
    gap = aten.abs.default(aten.sub.Tensor(ours, eager))
    gap = aten.masked_fill.Scalar(aten.nan_to_num.default(gap, float("inf"), float("inf")), same, 0.0)
    largest = float(aten.max.default(gap).item())
    if tolerance is None:
        return largest, False
    magnitude = aten.abs.default(aten.nan_to_num.default(eager, 0.0, 0.0, 0.0))
    level = aten.sqrt.default(aten.mean.default(aten.mul.Tensor(magnitude, magnitude)))
    allowed = aten.mul.Scalar(aten.add.Tensor(magnitude, level), tolerance)
    return largest, bool(aten.all.default(aten.le.Tensor(gap, allowed)).item())
