"""What is reported of a model that ran with and without a package: plain data. Owns `PackageRunReport`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from kernelforge.benchmark.types import Interval
from kernelforge.digest import Json
from kernelforge.report.rows import finite, interval_json


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedRow:
    """What one entry of the package did while the model ran.

    Attributes:
        state: "on", or why the entry is off in this mode.
        hits: calls that it served in one run of all samples; of a CUDA graph, while it was captured.
        misses: calls of its operator that no kernel served, by the reason why this one did not; of compiled code, while
            it was compiled too.
    """

    label: str
    state: str
    hits: int
    misses: Mapping[str, int]

    def to_json(self) -> dict[str, Json]:
        return {"label": self.label, "state": self.state, "hits": self.hits, "misses": dict(self.misses)}


@dataclass(frozen=True, slots=True, kw_only=True)
class ModeRun:
    """A model in one way to run it, without and with the package, paired.

    Attributes:
        mode: "eager", "graphed", "compiled", "reduce-overhead".
        why_not: why it was not compared, or "": then all else is empty.
        speedup: without over with, of the paired runs. without_ms, with_ms: raw wall times of a run, i-th with i-th.
        max_abs, relative: largest difference of the outputs, and the same over the largest magnitude.
        matches: the outputs are the same within what rounding explains. tokens_equal: integer outputs are; None if
            there are none.
        entries: what each entry served.
    """

    mode: str
    why_not: str = ""
    speedup: Interval | None = None
    without_ms: tuple[float, ...] = ()
    with_ms: tuple[float, ...] = ()
    max_abs: float | None = None
    relative: float | None = None
    matches: bool | None = None
    tokens_equal: bool | None = None
    entries: tuple[ServedRow, ...] = ()

    def to_json(self) -> dict[str, Json]:
        return {
            "mode": self.mode, "why_not": self.why_not, "speedup": interval_json(self.speedup),
            "without_ms": list(self.without_ms), "with_ms": list(self.with_ms), "max_abs": finite(self.max_abs),
            "relative": finite(self.relative), "matches": self.matches, "tokens_equal": self.tokens_equal,
            "entries": [entry.to_json() for entry in self.entries],
        }  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class PackageRunReport:
    """A model with and without a package.

    Attributes:
        model: its name. package: path. environment: device, torch and driver, in words.
        kernels: how many the package has. on: how many of them are on in some mode here.
        load_seconds: what reading, verifying and loading the package took.
    """

    model: str
    package: str
    device: str
    environment: str
    kernels: int
    on: int
    runs: tuple[ModeRun, ...]
    seconds: float = 0.0
    load_seconds: float = 0.0
    notes: tuple[str, ...] = field(default=())

    @property
    def matches(self) -> bool:
        """In no mode that was compared do the outputs differ."""
        return all(run.matches is not False for run in self.runs)

    def to_json(self) -> dict[str, Json]:
        return {
            "model": self.model, "package": self.package, "device": self.device, "environment": self.environment,
            "kernels": self.kernels, "on": self.on, "matches": self.matches, "seconds": finite(self.seconds),
            "load_seconds": finite(self.load_seconds),
            "runs": [run.to_json() for run in self.runs], "notes": list(self.notes),
        }  # fmt: skip
