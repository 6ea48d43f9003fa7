"""What the recorder counts of one signature. Owns `Slot`."""

from __future__ import annotations

from collections import Counter
from statistics import median
from typing import Any

import torch

from kernelforge.capture.types import OperatorCall


class Slot:
    """Count and time of one signature: a call of an operator (`call` is set), or of a function that none describes."""

    __slots__ = (
        "call", "calls", "events", "example", "first", "group", "inside", "name", "observed", "reason", "repeats",
        "seconds", "tally",
    )  # fmt: skip

    def __init__(self, name: str, reason: str) -> None:
        self.name, self.reason = name, reason
        self.call: OperatorCall | None = None
        self.calls = 0
        self.seconds = 0.0
        self.first = 0.0
        self.events: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []
        self.example: int | None = None
        self.group = ""
        self.inside: Counter[tuple[int, ...]] = Counter()
        self.observed: frozenset[str] | None = None
        self.tally: Any = None
        self.repeats: list[float] = []  # mean seconds of a call, of each repeat

    def mean_us(self) -> float:
        """Mean time of a call: the median of the repeats if there were any, else as recorded.

        A first call that was watched more closely than the others does not count.
        """
        if self.repeats:
            return 1e6 * median(self.repeats)
        if self.observed is not None and self.calls > 1:
            return 1e6 * (self.seconds - self.first) / (self.calls - 1)
        return 1e6 * self.seconds / max(self.calls, 1)

    def total_s(self) -> float:
        """Time of all recorded calls."""
        return self.calls * median(self.repeats) if self.repeats else self.seconds
