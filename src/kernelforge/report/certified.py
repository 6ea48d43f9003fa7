"""What is reported of a package that is certified again on a machine: plain data. Owns `RecertifyReport`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from kernelforge.benchmark.types import Interval
from kernelforge.digest import Json
from kernelforge.report.rows import DECISION_EAGER, DECISION_USE, finite, interval_json
from kernelforge.wording import speedup_words

State: TypeAlias = Literal["certified", "rejected", "waiting", "cannot run", "not judged"]
"""certified: judged and timed for this machine, here or where the package was made. rejected: wrong, or not to be run.
waiting: for being certified. cannot run: no binary is for this machine. not judged: the judge could not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryOutcome:
    """One entry of a package on this machine.

    Attributes:
        share: of the captured model's time, in [0, 1].
        decisions: mode of dispatch -> "use" or "eager: <reason>"; empty unless it is certified or rejected.
        speedups: of the modes that were timed here, over the mode's own path.
        detail: what the judge said, or why the entry is in this state.
        seconds: wall time of judging and timing; 0.0 if that was done before.
        foreign_cpu_share: the most that others used of the CPUs while it was timed here, in [0, 1].
    """

    variant: str
    label: str
    share: float
    state: State
    decisions: Mapping[str, str] = field(default_factory=dict)
    speedups: Mapping[str, Interval] = field(default_factory=dict)
    detail: str = ""
    seconds: float = 0.0
    foreign_cpu_share: float = 0.0

    def in_words(self) -> str:
        """ "certified, eager 1.83x [1.71, 1.95]; graphed off (not faster ...)"."""
        parts = []
        for mode, decision in self.decisions.items():
            interval = self.speedups.get(mode)
            gain = "" if interval is None else f" {speedup_words(interval.median, interval.low, interval.high)}"
            if decision.startswith(DECISION_USE):
                parts.append(f"{mode}{gain}")
            elif interval is not None:
                parts.append(f"{mode} off ({decision.removeprefix(DECISION_EAGER)})")
        return "; ".join([f"{self.state}" + (f": {self.detail}" if self.detail else ""), *parts])

    def to_json(self) -> dict[str, Json]:
        return {
            "variant": self.variant, "label": self.label, "share": finite(self.share), "state": self.state,
            "decisions": dict(self.decisions), "detail": self.detail, "seconds": finite(self.seconds),
            "foreign_cpu_share": finite(self.foreign_cpu_share),
            "speedups": {mode: interval_json(interval) for mode, interval in self.speedups.items()},
        }  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class RecertifyReport:
    """Where a package stands on this machine.

    Attributes:
        path, digest: of the package. environment: of this machine, in words. made_for: where it was exported.
        record: path of the local record, "" if there is none.
        stopped: why it ended before all entries were done, or "".
    """

    path: str
    digest: str
    environment: str
    made_for: str
    entries: tuple[EntryOutcome, ...]
    record: str = ""
    seconds: float = 0.0
    stopped: str = ""

    @property
    def certified(self) -> bool:
        """Every entry has its verdict and its times for this machine."""
        return all(entry.state in ("certified", "rejected") for entry in self.entries)

    @property
    def rejected(self) -> bool:
        """Some kernel is wrong here, or may not be run."""
        return any(entry.state == "rejected" for entry in self.entries)

    def to_json(self) -> dict[str, Json]:
        return {
            "path": self.path, "digest": self.digest, "environment": self.environment, "made_for": self.made_for,
            "certified": self.certified, "rejected": self.rejected, "record": self.record,
            "seconds": finite(self.seconds), "stopped": self.stopped,
            "entries": [entry.to_json() for entry in self.entries],
        }  # fmt: skip
