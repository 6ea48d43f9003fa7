"""What a search tells its caller while it runs. All events come from the thread that called `run_search`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from kernelforge.search.types import Node

Phase: TypeAlias = Literal["generate", "build", "verify", "benchmark", "done"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseChanged:
    """A trial entered a phase. Trials are prepared ahead, so phases of neighbouring trials interleave.

    "done" also ends a trial that was prepared but dropped, and one for which the generator had no idea.

    Attributes:
        variant: the variant's label. trial: 1, 2, ... within this call of the search, in the order of preparation.
    """

    variant: str
    trial: int
    phase: Phase


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialFinished:
    """A trial was judged and stored.

    Attributes:
        variant: the variant's label. best_speedup: median of the variant's best node so far, or None.
    """

    variant: str
    node: Node
    best_speedup: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class VariantExhausted:
    """No more trials for this variant in this call: the generator has no more ideas, or the variant is parked."""

    variant: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchProgress:
    """How far the search is. It may end earlier, never much later.

    Attributes:
        done: trials of this call. expected: how many it will likely make, None if nothing limits them.
        eta_s: seconds until the budget is spent, None if unknown.
    """

    done: int
    expected: int | None
    eta_s: float | None


Event: TypeAlias = "PhaseChanged | TrialFinished | VariantExhausted | SearchProgress"
