"""Whether a set of cases can reject at all: kernels that compute nothing are put before it. Pure.

Each null candidate (zeros, the mean, a copy of an input, the previous output, half of the work, the next lower
precision) must be rejected by at least two cases of the set; else the judge draws further cases. Loads torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from kernelforge.cards.types import Variant
from kernelforge.verify.compare import Mismatch, compare
from kernelforge.verify.prepare import PreparedCase, lower_precisions
from kernelforge.verify.tolerance import Expected

ENOUGH = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Power:
    """For each null candidate, how many cases reject it (counted up to `ENOUGH`)."""

    rejected_by: Mapping[str, int]

    @property
    def missing(self) -> tuple[str, ...]:
        """Null candidates that too few cases reject."""
        return tuple(name for name, count in self.rejected_by.items() if count < ENOUGH)


def power_of(variant: Variant, cases: Sequence[PreparedCase]) -> Power:
    """Try every null candidate on the cases, the telling ones first, until enough reject it."""
    counts: dict[str, int] = {}
    for prepared in sorted(cases, key=lambda p: p.case.is_edge):
        for name, make in _nulls(variant, prepared, cases):
            if counts.setdefault(name, 0) >= ENOUGH:
                continue
            outputs = make()
            if outputs is not None and any(
                isinstance(compare(e, o), Mismatch) for e, o in zip(prepared.expected, outputs, strict=True)
            ):
                counts[name] += 1
    return Power(rejected_by=counts)


Maker = Callable[[], "Sequence[Tensor] | None"]


def _nulls(variant: Variant, prepared: PreparedCase, cases: Sequence[PreparedCase]) -> Iterator[tuple[str, Maker]]:
    expected = prepared.expected
    yield "zeros", lambda: [torch.zeros_like(e.eager) for e in expected]
    yield "the mean", lambda: [_mean(e) for e in expected]
    yield "half of the work", lambda: [_half(e) for e in expected]
    yield "the previous output", lambda: _previous(prepared, cases)
    if not variant.mutates:
        yield "a copy of an input", lambda: _copy(prepared)
    else:
        yield "the input left as it was", lambda: [prepared.case.inputs[i] for i in sorted(variant.mutates)]
    if any(e.eager.is_floating_point() for e in expected):
        yield "the next lower precision", lambda: _lower(variant, prepared)


def _mean(expected: Expected) -> Tensor:
    finite = expected.truth.double()[expected.truth.double().isfinite()]
    mean = float(finite.mean()) if finite.numel() else 0.0
    dtype = expected.eager.dtype
    if not dtype.is_floating_point:
        return torch.full_like(expected.eager, int(mean))
    # The truth is wider than the output and may be beyond its range.
    largest = torch.finfo(dtype).max
    return torch.full_like(expected.eager, min(max(mean, -largest), largest))


def _half(expected: Expected) -> Tensor:
    out = expected.eager.clone(memory_format=torch.contiguous_format)
    flat = out.view(-1)
    flat[flat.numel() // 2 :] = 0
    return out


def _previous(prepared: PreparedCase, cases: Sequence[PreparedCase]) -> Sequence[Tensor] | None:
    """Eager's output of another case of the same sizes, or of this one with its elements shifted by one."""
    for other in cases:
        if other is not prepared and [e.eager.shape for e in other.expected] == [
            e.eager.shape for e in prepared.expected
        ]:
            return [e.eager for e in other.expected]
    return [e.eager.reshape(-1).roll(1).reshape(e.eager.shape) for e in prepared.expected]


def _copy(prepared: PreparedCase) -> Sequence[Tensor] | None:
    """The first input with as many elements as the output; a broadcast of it if there is none; None if neither."""
    outputs = []
    for expected in prepared.expected:
        target = expected.eager
        like = [t for t in prepared.case.inputs if t.numel() == target.numel() and t.dtype == target.dtype]
        if not like:
            return None
        outputs.append(like[0].reshape(target.shape))
    return outputs


def _lower(variant: Variant, prepared: PreparedCase) -> Sequence[Tensor] | None:
    """The more accurate of the lower precisions."""
    emulations = lower_precisions(variant, prepared)
    if not emulations:
        return None
    return [o.to(e.eager.dtype) for o, e in zip(emulations[0], prepared.expected, strict=True)]
