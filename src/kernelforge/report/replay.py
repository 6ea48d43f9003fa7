"""What a replay of a recorded search says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kernelforge.digest import Json
from kernelforge.report.units import format_speedup
from kernelforge.wording import plural


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayReport:
    """A replay in which nothing differed.

    Attributes:
        project: the model's name. model: the language model.
        calls_left: recorded calls after the last trial, whose search was ended before.
        best: label of a variant -> median speed-up of its best kernel over eager, None if no kernel is valid.
    """

    path: str
    project: str
    model: str
    trials: int
    calls: int
    calls_left: int
    best: Mapping[str, float | None]

    @property
    def lines(self) -> tuple[str, ...]:
        """For people."""
        asked, judged = plural(self.calls, "call"), plural(self.trials, "trial")
        said = f"replayed, and nothing differs: {asked} of {self.model}, {judged}"
        left = [f"{plural(self.calls_left, 'call')} after the last trial not replayed"] if self.calls_left else []
        best = [f"{label}: {format_speedup(speedup)}" for label, speedup in self.best.items() if speedup is not None]
        return (said, *left, *best)

    def to_json(self) -> dict[str, Json]:
        return {
            "path": self.path, "project": self.project, "model": self.model, "trials": self.trials,
            "calls": self.calls, "calls_left": self.calls_left, "best": dict(self.best),
        }  # fmt: skip
