"""How much of what a package promises is inactive on this machine, and what to do about it. Pure."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from kernelforge.dispatch.machine import Machine, cannot_run, uncertified
from kernelforge.dispatch.types import EntryState
from kernelforge.package.types import MODES, Entry, Package, Use
from kernelforge.wording import plural


@dataclass(frozen=True, slots=True, kw_only=True)
class Inactive:
    """The entries that a package wants to use in some mode of dispatch, and that are off here in every one.

    Attributes:
        wanted: how many it wants to use. reasons: of each of those that are off, why.
        share: of the expected gain of all wanted, in [0, 1]; 0.0 if no gain was ever measured.
        waiting: how many of them run here, and only wait for being certified again.
    """

    path: str
    wanted: int
    reasons: tuple[str, ...]
    share: float
    waiting: int

    @property
    def command(self) -> str:
        """What would turn entries on again, or "" if nothing would."""
        return shlex.join(["kforge", "cast", "recertify", self.path]) if self.waiting else ""

    def __str__(self) -> str:
        counted = "; ".join(f"{reason} ({count})" for reason, count in sorted(Counter(self.reasons).items()))
        hint = f". To use {'it' if self.waiting == 1 else 'them'}: {self.command}" if self.command else ""
        return (
            f"{self.path}: {len(self.reasons)} of {plural(self.wanted, 'kernel')} are off here "
            f"({self.share:.0%} of the expected gain): {counted}{hint}"
        )


def inactive(
    package: Package, states: Sequence[EntryState], machine: Machine, certified: Collection[str]
) -> Inactive | None:
    """What of a package is inactive; None if nothing is that it wants to use.

    Args:
        states: of its entries here. certified: ids of the variants that were certified again on this machine.
    """
    wanted = [s for s in states if any(isinstance(s.entry.decision(mode), Use) for mode in MODES)]
    lost = [s for s in wanted if s.kernel is None]
    if not lost:
        return None
    total, off = (sum(expected_gain(s.entry) for s in some) for some in (wanted, lost))
    waiting = sum(
        s.entry.variant.id not in certified
        and not cannot_run(s.entry, machine)
        and bool(uncertified(s.entry, package.header, machine))
        for s in lost
    )
    reasons = tuple(next(s.reasons[m] for m in MODES if isinstance(s.entry.decision(m), Use)) for s in lost)
    return Inactive(
        path=str(package.path), wanted=len(wanted), reasons=reasons, share=off / total if total > 0 else 0.0,
        waiting=waiting,
    )  # fmt: skip


def expected_gain(entry: Entry) -> float:
    """Of a model's captured time, in [0, 1]: what an entry saves in the mode of dispatch in which it saves most."""
    used = [mode for mode in MODES if isinstance(entry.decision(mode), Use)]
    speedup = max((speedup_in(entry, mode) for mode in used), default=1.0)
    return entry.share * max(1.0 - 1.0 / speedup, 0.0) if speedup > 0 else 0.0


def speedup_in(entry: Entry, mode: str) -> float:
    """The median speed-up over the mode's own path when it was measured there, else that of the kernel alone."""
    summary = entry.measured(mode).get("speedup")
    median = summary.get("median") if isinstance(summary, Mapping) else None
    return float(median) if isinstance(median, int | float) else entry.speedup
