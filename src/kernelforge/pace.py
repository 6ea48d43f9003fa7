"""How far a row of like steps is, and how long the rest will take. Owns `Pace`."""

from __future__ import annotations

import time

from kernelforge.report.units import format_duration


class Pace:
    """How far the steps are, and how long the rest will take if they go on as they did."""

    def __init__(self, total: int) -> None:
        self._total, self._begun, self._started = total, 0, time.monotonic()

    def next(self) -> None:
        """Another step's turn."""
        self._begun += 1

    def finish(self) -> None:
        """None is left; what is done from now on was not foreseen."""
        self._total = 0

    def __str__(self) -> str:
        return f"{self._begun}/{self._total} " if self._total else ""

    def left(self) -> str:
        """ ", about 40s left", once one is done."""
        done = self._begun - 1
        if done < 1 or not self._total:
            return ""
        seconds = (time.monotonic() - self._started) / done * (self._total - done)
        return f", about {format_duration(seconds)} left"
