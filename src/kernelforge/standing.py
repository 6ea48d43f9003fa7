"""Where a package stands on this machine: which of its entries have a verdict and times here. Owns `Standing`.

Nothing of the package is loaded or run.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from kernelforge.benchmark.types import Interval
from kernelforge.dispatch.machine import Machine, cannot_run, this_machine, uncertified
from kernelforge.dispatch.records import Environment, LocalRecord, environments, find_record
from kernelforge.errors import EnvironmentMissing
from kernelforge.package.reader import read_package
from kernelforge.package.trust import require_trust
from kernelforge.package.types import MODES, Decision, Entry, JsonObject, Package, Use
from kernelforge.report.certified import EntryOutcome, RecertifyReport, State
from kernelforge.report.evaluation import interval_of
from kernelforge.report.rows import DECISION_EAGER, DECISION_USE
from kernelforge.settings import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """A package and what is known of it on this machine.

    Attributes:
        environment: of the device on which it is judged: the CPU, or the first GPU.
        record: of this machine, if there is one.
    """

    package: Package
    machine: Machine
    environment: Environment
    record: LocalRecord | None
    settings: Settings

    def is_due(self, entry: Entry) -> bool:
        """Whether an entry has neither verdict nor times for this machine."""
        known = self.record is not None and self.record.of(entry, self.machine) is not None
        return not known and bool(uncertified(entry, self.package.header, self.machine))

    def outcome_of(self, entry: Entry) -> EntryOutcome:
        """Where an entry stands."""
        unfit = cannot_run(entry, self.machine)
        if unfit:
            return plain_outcome(entry, "cannot run", unfit)
        known = self.record.of(entry, self.machine) if self.record is not None else None
        if known is not None:
            rejected = known.verdict.get("verdict") == "rejected"
            detail = str(known.verdict.get("detail", "")) if rejected else ""
            there = replace(entry, decisions=known.decisions, measurement=known.measurement)
            outcome = _with_modes(plain_outcome(entry, "rejected" if rejected else "certified", detail), there)
            return replace(outcome, foreign_cpu_share=_foreign_share(there.measured("eager")))
        due = uncertified(entry, self.package.header, self.machine)
        if due:
            return plain_outcome(entry, "waiting", due)
        return _with_modes(plain_outcome(entry, "certified", "as it was exported"), entry)

    def report(
        self, done: Mapping[str, EntryOutcome] | None = None, *, seconds: float = 0.0, stopped: str = ""
    ) -> RecertifyReport:
        """The state of all entries, the largest share first. done: what was found just now, by variant id."""
        header = self.package.header
        made_for = Environment(
            device=header.device, device_name=header.device_name, capability="", driver=header.driver,
            torch=header.torch,
        )  # fmt: skip
        outcomes = [(done or {}).get(e.variant.id) or self.outcome_of(e) for e in self.package.entries]
        record = "" if self.record is None else str(self.record.path(self.settings.config_dir))
        return RecertifyReport(
            path=str(self.package.path), digest=self.package.digest, environment=str(self.environment),
            made_for=str(made_for), entries=tuple(sorted(outcomes, key=lambda e: -e.share)), record=record,
            seconds=seconds, stopped=stopped,
        )  # fmt: skip


def open_standing(path: Path, *, settings: Settings, trust: str | Collection[str] = ()) -> Standing:
    """Read a package and its record.

    Raises:
        UntrustedPackage: nobody has said to trust it. PackageError: it is damaged.
        EnvironmentMissing: it is for a GPU, and there is none.
    """
    package = read_package(path)
    require_trust(package, settings, given=trust)
    machine = this_machine()
    found = environments(package.header.device, machine)
    if not found:
        raise EnvironmentMissing(
            f"{path} is for a GPU, and torch sees none here", hint="check nvidia-smi and that torch is a CUDA build"
        )
    record = find_record(package, machine, settings.config_dir)
    return Standing(package=package, machine=machine, environment=found[0], record=record, settings=settings)


def plain_outcome(entry: Entry, state: State, detail: str) -> EntryOutcome:
    """An entry in a state, with nothing measured."""
    return EntryOutcome(
        variant=entry.variant.id, label=entry.variant.label, share=entry.share, state=state, detail=detail
    )


def _with_modes(outcome: EntryOutcome, entry: Entry) -> EntryOutcome:
    speedups = {mode: found for mode in MODES if (found := _speedup(entry.measured(mode))) is not None}
    return replace(outcome, decisions={m: _decision(entry.decision(m)) for m in MODES}, speedups=speedups)


def _speedup(block: JsonObject) -> Interval | None:
    return interval_of(block.get("speedup"))


def _foreign_share(block: JsonObject) -> float:
    points = block.get("points")
    listed = points if isinstance(points, Sequence) and not isinstance(points, str) else ()
    found = [p.get("foreign_cpu_share") for p in listed if isinstance(p, Mapping)]
    return max((float(share) for share in found if isinstance(share, int | float)), default=0.0)


def _decision(decision: Decision) -> str:
    return DECISION_USE if isinstance(decision, Use) else DECISION_EAGER + decision.reason
