"""Means with their intervals, and the tables of the generated page. Owns `Mean`."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev


@dataclass(frozen=True, slots=True)
class Mean:
    """With the half-width of its 95% interval."""

    value: float
    half: float

    @property
    def clear(self) -> bool:
        """The interval lies on one side of zero."""
        return abs(self.value) > self.half


def mean(values: Sequence[float]) -> Mean:
    """Over seeds, by Student's t, which is normal at hundreds of seeds."""
    half = 1.96 * stdev(values) / math.sqrt(len(values)) if len(values) > 1 else math.nan
    return Mean(fmean(values), half)


def times(found: Mean) -> str:
    """A log speed-up as a factor: "1.62 ± 0.04"."""
    value = math.exp(found.value)
    return f"{value:.2f} ± {value * found.half:.2f}"


def percent(found: Mean, *, digits: int = 1) -> str:
    """A difference of log speed-ups: "+12.3% ± 1.1"; bold if the interval leaves out zero."""
    value, half = 100 * math.expm1(found.value), 100 * math.exp(found.value) * found.half
    text = f"{value:+.{digits}f}% ± {half:.{digits}f}"
    return f"**{text}**" if found.clear else text


def row(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def head(first: str, others: Iterable[object]) -> str:
    cells = [str(o) for o in others]
    return row([first, *cells]) + "\n" + row(["---", *("---:" for _ in cells)])
