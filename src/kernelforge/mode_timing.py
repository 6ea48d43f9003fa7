"""Times a package's entries in each mode of dispatch that is asked for, and decides for each. Owns `ModeTimings`.

A mode is decided for itself, against its own path: calls from Python against eager's calls, a CUDA graph of served
calls against a graph of eager's, code compiled with the kernel against what the compiler makes without it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from kernelforge.cards.examples import ExampleStore
from kernelforge.cards.types import VariantRecord
from kernelforge.certification import DispatchTiming, time_dispatched
from kernelforge.compiled_timing import time_compiled
from kernelforge.digest import Json
from kernelforge.graph_timing import NO_DEVICE, time_in_graphs
from kernelforge.package.types import MODES, Decision, Off, Use
from kernelforge.search.lineage import MIN_SPEEDUP_LOW
from kernelforge.search.winners import not_faster
from kernelforge.settings import Settings
from kernelforge.wording import check_known

NOT_MEASURED = "not measured in this mode"

WHERE = {"eager": "through dispatch", "graphed": "in a CUDA graph", "compiled": "under torch.compile"}
"""Modes in the words of a decision."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Budgets:
    """Seconds for one entry in each mode, compilation apart; see `certification.time_dispatched` for `patience_s`."""

    eager_s: float
    graphed_s: float
    compiled_s: float
    patience_s: float


EXPORT = Budgets(eager_s=1.5, graphed_s=0.5, compiled_s=1.0, patience_s=20.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModeTimings:
    """What one entry's calls cost in the modes of dispatch.

    Attributes:
        timed: by mode. untimed: why a mode was not.
    """

    timed: Mapping[str, DispatchTiming]
    untimed: Mapping[str, str]

    @property
    def wrong(self) -> str:
        """What was wrong with an output in eager mode, or "": then the kernel itself is not to be trusted."""
        return self.timed["eager"].wrong if "eager" in self.timed else ""

    def decisions(self) -> dict[str, Decision]:
        """For each mode: the kernel is used if the low end of its interval beats the threshold there."""
        return {mode: self._decision(mode) for mode in MODES}

    def _decision(self, mode: str) -> Decision:
        timing = self.timed.get(mode)
        if timing is None:
            return Off(reason=self.untimed.get(mode, NOT_MEASURED))
        if timing.wrong:
            return Off(reason=f"wrong: {timing.wrong}")
        if timing.interval.low > MIN_SPEEDUP_LOW:
            return Use()
        baseline = "eager" if mode != "compiled" else "the compiler"
        return Off(reason=f"{WHERE[mode]} {not_faster(timing.interval, than=baseline)}")

    def used_in(self) -> tuple[str, ...]:
        """The modes in which the kernel is to be used."""
        return tuple(mode for mode, decision in self.decisions().items() if isinstance(decision, Use))

    def to_json(self) -> dict[str, Json]:
        """One block for each mode that was timed."""
        return {mode: timing.to_json() for mode, timing in self.timed.items() if not timing.wrong}


def chosen_modes(names: Sequence[str] | None, device: str) -> tuple[str, ...]:
    """The modes to time: eager always; by default CUDA graphs on a GPU too, and compiled code only when it is named.

    Graphs cost half a second an entry, and are what makes a launch-bound model fast. Compiled code costs Inductor
    several compilations an entry, tens of seconds, and is of use to those alone who compile.

    Raises:
        UsageError: an unknown mode.
    """
    if names is None:
        return ("eager", "graphed") if device == "cuda" else ("eager",)
    check_known(names, MODES, "mode of dispatch")
    return tuple(mode for mode in MODES if mode == "eager" or mode in names)


def modes_before(path: Path) -> tuple[str, ...] | None:
    """The modes in which the kernels of an earlier package at that place were timed; None if there is none to read."""
    from kernelforge.errors import NotFound, PackageError
    from kernelforge.package.reader import read_package

    try:
        package = read_package(path)
    except (NotFound, PackageError):
        return None
    timed = tuple(m for m in MODES if any(entry.measured(m) for entry in package.entries))
    return timed or None


def time_in_modes(
    package: Path,
    records: Sequence[VariantRecord],
    examples: ExampleStore,
    settings: Settings,
    *,
    modes: Collection[str],
    say: Callable[[str], None],
    budgets: Budgets = EXPORT,
) -> Iterator[ModeTimings]:
    """Load the package and time each record, whose variants are those of its entries, in each of the modes.

    An output that is wrong in eager mode ends it for a record; all else that fails in a mode is why it was not timed.

    Args:
        package: one that this user signed, with every entry on in these modes.

    Raises:
        DeviceBusy: another process times on the device for too long.
    """
    from kernelforge.dispatch.loading import load

    loaded = load(package, settings=settings)
    for record in records:
        timed: dict[str, DispatchTiming] = {}
        untimed = {} if record.variant.device == "cuda" else {"graphed": NO_DEVICE}
        for mode in (m for m in MODES if m in modes and m not in untimed):
            say(f"timing {record.variant.label} {WHERE[mode]}")
            result: DispatchTiming | str
            if mode == "eager":
                result = time_dispatched(
                    loaded, record, examples, settings, budget_s=budgets.eager_s, patience_s=budgets.patience_s
                )
            elif mode == "graphed":
                result = time_in_graphs(loaded, record, examples, settings, budget_s=budgets.graphed_s)
            else:
                result = time_compiled(loaded, record, examples, settings, budget_s=budgets.compiled_s)
            if isinstance(result, str):
                untimed[mode] = result
                continue
            timed[mode] = result
            if mode == "eager" and result.wrong:
                break
        yield ModeTimings(timed=timed, untimed=untimed)
