"""From winners to a package: certify, time each entry through the real dispatch path, narrow or leave out, write.

An entry's decisions are taken here, one for each mode of dispatch: the kernel must beat the mode's own path by
`MIN_SPEEDUP_LOW` beyond the noise when both are called as a model calls them there, so that a microsecond won by the
kernel and lost by the guard does not count. What is off in one mode may be on in another. Where only larger sizes win
in eager mode, the guard shrinks to those: the same source is built for the narrowed variant, certified and timed again,
because that is the binary that ships. If the unnarrowed kernel wins in another mode, it ships beside.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from kernelforge.build.types import Artifact, BuildFailure
from kernelforge.cards.types import VariantRecord
from kernelforge.certification import DispatchTiming
from kernelforge.digest import Json
from kernelforge.errors import PackageError
from kernelforge.evaluate.types import Certified, MemoryUnavailable, Scored, Trial, WorkerFailure
from kernelforge.generate.types import Candidate
from kernelforge.library.certified import certified_kernel
from kernelforge.library.folder import Library
from kernelforge.library.types import StoredKernel
from kernelforge.mode_timing import NOT_MEASURED, ModeTimings, chosen_modes, time_in_modes
from kernelforge.pace import Pace
from kernelforge.package.reader import read_package
from kernelforge.package.serial import make_entry
from kernelforge.package.signing import local_signer
from kernelforge.package.trust import require_trust
from kernelforge.package.types import MODES, Decision, Entry, Header, Off, Use
from kernelforge.package.writer import write_package
from kernelforge.report.operators import untried_reason
from kernelforge.report.rows import DECISION_EAGER, DECISION_USE, ExportReport, UsedKernel, used_decision
from kernelforge.report.units import format_speedup
from kernelforge.search.finalists import by_final_times, final_speedup, finalists
from kernelforge.search.lineage import MIN_SPEEDUP_LOW
from kernelforge.search.types import Node
from kernelforge.search.winners import Choice, choose_winners
from kernelforge.settings import load_settings
from kernelforge.verify.types import Rejected, RejectReason

if TYPE_CHECKING:
    from kernelforge.store.project import Project
    from kernelforge.workshop import Workshop

CERTIFICATES = 3
"""So many of a variant's fastest nodes are tried, if the certificate turns the first ones down."""

UNCHECKED = "memory could not be checked"


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """A written package and what was decided.

    Attributes:
        decisions: variant id -> decision for the operator table, where it differs from what the search said.
        nodes: variant id -> id of the node that was decided on: the search's winner.
    """

    report: ExportReport
    decisions: Mapping[str, str]
    nodes: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Certified:
    """A kernel that has its certificate. `origin` is the record that was captured, `record` the one it serves."""

    origin: VariantRecord
    record: VariantRecord
    candidate: Candidate
    scored: Scored
    node: str


def export(
    project: Project,
    output: Path,
    *,
    workshop: Workshop,
    picks: Mapping[str, str] | None = None,
    write_empty: bool = True,
    allow_unchecked: bool = False,
    modes: Sequence[str] | None = None,
    say: Callable[[str], None],
) -> Exported:
    """Write the project's winners as a package, and keep those in use in this machine's library.

    Args:
        picks: variant -> node, by hand: used whatever its time, but never an invalid one.
        write_empty: write the file, or replace an older one, also if no kernel is worth using.
        allow_unchecked: export a kernel also where this machine cannot check its memory; the header names it.
        modes: of dispatch, in which kernels are timed and may be used; see `mode_timing.chosen_modes`.

    Raises:
        NotFound, UsageError: a pick names nothing, or nothing valid. PackageError: the file cannot be written.
    """
    if not output.parent.is_dir():
        raise PackageError(f"cannot write {output}: there is no folder {output.parent}", hint="make it, or change -o")
    exporter = _Exporter(
        project=project, output=output, workshop=workshop, say=say, allow_unchecked=allow_unchecked,
        modes=chosen_modes(modes, project.device),
    )  # fmt: skip
    picked = frozenset(project.record(prefix).variant.id for prefix in picks or {})
    exported = exporter.run(choose_winners(project, picks), picked, write_empty=write_empty)
    project.record_decisions(exported.decisions, exported.nodes)
    if exporter.certified:
        Library(workshop.settings.library_dir).keep(exporter.certified)
    return exported


def leave_out(path: Path, variants: Collection[str], *, reason: str) -> None:
    """Turn these variants off in a package that was written here.

    Raises:
        PackageError: the file cannot be written, or is not to be trusted any more.
    """
    package = read_package(path)
    require_trust(package, load_settings())  # it is signed again
    entries = [
        replace(e, decisions={**e.decisions, "eager": Off(reason=reason)}) if e.variant.id in variants else e
        for e in package.entries
    ]
    write_package(path, entries, header=package.header)


class _Exporter:
    """One export."""

    def __init__(
        self, *, project: Project, output: Path, workshop: Workshop, say: Callable[[str], None],
        allow_unchecked: bool = False, modes: Sequence[str] = ("eager",),
    ) -> None:  # fmt: skip
        self.project, self.output, self.workshop, self.say = project, output, workshop, say
        self.allow_unchecked, self.modes = allow_unchecked, tuple(modes)
        self.signer = local_signer(workshop.settings.config_dir)  # now, not after minutes of certificates
        self.header = _header(project)
        self.skipped: list[tuple[str, str]] = []
        self.cannot_check = ""
        self.decisions: dict[str, str] = {}
        self.used: list[UsedKernel] = []
        self.certified: list[StoredKernel] = []
        self.pace = Pace(0)

    def run(self, choices: Sequence[Choice], picked: frozenset[str], *, write_empty: bool) -> Exported:
        self.skipped = [(c.record.variant.label, self._why_skipped(c)) for c in choices if c.node is None]
        self.pace = Pace(sum(c.node is not None for c in choices))
        certified = [c for c in map(self._certify_choice, choices) if c is not None]
        entries: list[Entry] = []
        narrowed: list[_Certified] = []
        self.pace.finish()
        for kernel, timings in self._time(certified):
            picked_by_hand = kernel.origin.variant.id in picked
            if picked_by_hand or "eager" in timings.used_in():
                entries.append(self._use(kernel, timings, picked=picked_by_hand))
                continue
            smaller = self._narrow(kernel, timings.timed["eager"])
            if smaller is not None:
                narrowed.append(smaller)
            # What wins in another mode at all sizes ships as it is, beside what wins in eager mode at some.
            if timings.used_in():
                entries.append(self._use(kernel, timings))
            elif smaller is None:
                entries.append(self._turn_down(kernel, timings))
        for kernel, timings in self._time(narrowed):
            if timings.used_in():
                entries.append(self._use(kernel, timings))
            else:
                entries.append(self._turn_down(kernel, timings))
        used = sum(any(isinstance(e.decision(mode), Use) for mode in MODES) for e in entries)
        size_bytes = 0
        if used or write_empty:
            self._write(self.output, entries)
            size_bytes = self.output.stat().st_size
        report = ExportReport(
            path=str(self.output), entries=used, held=len(entries), skipped=tuple(self.skipped), size_bytes=size_bytes,
            used=tuple(sorted(self.used, key=lambda u: -u.share)),
        )  # fmt: skip
        # The finals and the certificates may have chosen another one than the search.
        nodes = {c.record.variant.id: c.node.id for c in choices if c.node is not None}
        nodes |= {c.origin.variant.id: c.node for c in certified}
        return Exported(report=report, decisions=self.decisions, nodes=nodes)

    def _write(self, path: Path, entries: Sequence[Entry]) -> None:
        write_package(path, entries, header=self.header, signer=self.signer)

    def _why_skipped(self, choice: Choice) -> str:
        """In the words of the operator table."""
        record = choice.record
        untried = not record.forgeable and not self.project.nodes(record.variant.id)
        return (untried_reason(record) if untried else "") or choice.reason

    def _certify_choice(self, choice: Choice) -> _Certified | None:
        """The first of the variant's fastest nodes that has its certificate; of the last one's failure it is told."""
        if choice.node is None:
            return None
        self.pace.next()
        for node in self._by_final_times(choice.record, choice.node, choice.runners_up)[:CERTIFICATES]:
            certified = self._certify_node(choice.record, node)
            if certified is not None:
                self._forgive(choice.record)
                return certified
            if self.cannot_check:
                break
        return None

    def _by_final_times(self, record: VariantRecord, best: Node, runners_up: Sequence[Node]) -> tuple[Node, ...]:
        """The nodes in the order in which to certify them: those close to the best are timed again together."""
        close = finalists(best, runners_up)
        others = tuple(n for n in runners_up if n not in close)
        if len(close) < 2 or self.cannot_check:
            return (best, *runners_up)
        label = record.variant.label
        self.say(f"timing the {len(close)} fastest of {label} again, together")
        artifacts = [self._artifact(n) for n in close]
        retimed = self.workshop.judge.retime(artifacts, record, self.project.examples)
        if isinstance(retimed, WorkerFailure):
            self.say(f"{label}: {retimed.detail}; what the search measured decides")
            return (best, *runners_up)
        times = {n.id: r for n, r in zip(close, retimed, strict=True) if not isinstance(r, Rejected)}
        for node, verdict in zip(close, retimed, strict=True):
            if isinstance(verdict, Rejected):
                self._append(node.candidate, verdict, 0.0)
        order = by_final_times(close, times, device=self.project.device)
        listed = ", ".join(f"trial {n.number} {format_speedup(final_speedup(times[n.id]))}" for n in order)
        self.say(f"{label}: {listed or 'none is right any more'}")
        return (*order, *others)

    def _artifact(self, node: Node) -> Artifact:
        """The binary from where the project keeps it: the build cache may be gone."""
        assert isinstance(node.outcome, Scored)
        return replace(
            node.outcome.artifact, path=self.project.binary(node.outcome.artifact.digest), source=node.candidate.source
        )

    def _certify_node(self, record: VariantRecord, node: Node) -> _Certified | None:
        assert isinstance(node.outcome, Scored)
        kernel = _Certified(
            origin=record, record=record, candidate=node.candidate,
            scored=replace(node.outcome, artifact=self._artifact(node)), node=node.id,
        )  # fmt: skip
        return self._certify(kernel)

    def _certify(self, kernel: _Certified) -> _Certified | None:
        if self.cannot_check:
            self._skip(kernel, self.cannot_check)
            return None
        self.say(f"certifying {self.pace}{kernel.record.variant.label}{self.pace.left()}")
        started = time.monotonic()
        verdict = self.workshop.judge.certify(kernel.scored.artifact, kernel.record, self.project.examples)
        if isinstance(verdict, Rejected):
            self._store(kernel, verdict, time.monotonic() - started)
        if not isinstance(verdict, Certified):
            self._skip(kernel, f"certificate: {_in_words(verdict)}")
            return None
        if isinstance(verdict.memory, MemoryUnavailable) and not self.allow_unchecked:
            reason = f"{UNCHECKED}: {verdict.memory.reason} (--allow-unchecked exports it all the same)"
            self._skip(kernel, reason)
            if verdict.memory.anywhere:
                self.cannot_check = reason  # and so no other kernel needs its certificate
            return None
        return replace(kernel, scored=replace(kernel.scored, verdict=verdict))

    def _time(self, kernels: Sequence[_Certified]) -> list[tuple[_Certified, ModeTimings]]:
        """Those that are right through dispatch, each with its timings; the others are refused."""
        if not kernels:
            return []
        provisional = self.output.with_name(f".{self.output.name}.provisional")
        everywhere = dict.fromkeys(self.modes, Use())
        timed: list[tuple[_Certified, ModeTimings]] = []
        pace = Pace(len(kernels))
        try:
            self._write(provisional, [_entry(k, None, everywhere) for k in kernels])
            timings = time_in_modes(
                provisional, [k.record for k in kernels], self.project.examples, self.workshop.settings,
                modes=self.modes, say=lambda text: self.say(f"{text} {pace}{pace.left()}".rstrip()),
            )  # fmt: skip
            pace.next()
            for kernel, each in zip(kernels, timings, strict=True):
                timed.append((kernel, each))
                pace.next()
        finally:
            provisional.unlink(missing_ok=True)
        for kernel, each in timed:
            if each.wrong:
                self._refuse(kernel, each.wrong)
        return [(kernel, each) for kernel, each in timed if not each.wrong]

    def _narrow(self, kernel: _Certified, timing: DispatchTiming) -> _Certified | None:
        """The kernel for only those sizes that win, built and certified for them; None if there are none."""
        variant = kernel.record.variant
        least = timing.wins_from(variant, MIN_SPEEDUP_LOW)
        if least is None:
            return None
        smaller = replace(variant, min_elements=least)
        points = tuple(p for p in kernel.record.points if smaller.admits_dims(p.dims))
        record = replace(kernel.record, variant=smaller, points=points)
        candidate = replace(kernel.candidate, variant_id=smaller.id, parent=kernel.candidate.id)
        artifact: Artifact | BuildFailure = self.workshop.backend.build(candidate, smaller)
        if isinstance(artifact, BuildFailure):
            self.say(f"{smaller.label} does not build although {variant.label} does: {artifact.detail}")
            return None
        scored = replace(kernel.scored, artifact=artifact)
        return self._certify(replace(kernel, record=record, candidate=candidate, scored=scored))

    def _use(self, kernel: _Certified, timings: ModeTimings, *, picked: bool = False) -> Entry:
        """The entry of a kernel that is used in some mode. picked: by hand, and so in eager mode whatever its time."""
        variant, least = kernel.record.variant, kernel.record.variant.min_elements
        decisions = timings.decisions() | ({"eager": Use()} if picked else {})
        modes = tuple(mode for mode in MODES if isinstance(decisions[mode], Use))
        dispatch = timings.timed[modes[0]].interval
        self._decide(kernel, used_decision(dispatch, least, mode=modes[0]), eager="eager" in modes)
        self.used.append(UsedKernel(
            label=variant.label, origin=kernel.origin.variant.label, share=kernel.origin.share, least_elements=least,
            dispatch=dispatch, modes={mode: timings.timed[mode].interval for mode in modes},
        ))  # fmt: skip
        if self.workshop.settings.library:
            self.certified.append(certified_kernel(
                kernel.origin.variant, kernel.candidate, kernel.scored, least_elements=least,
                dispatch=dispatch, prelude=self.workshop.prelude(kernel.origin.variant),
                toolchain=self.workshop.backend.brief(), device_name=self.header.device_name,
                model=self.project.model,
            ))  # fmt: skip
        return _entry(kernel, timings, decisions)

    def _decide(self, kernel: _Certified, decision: str, *, eager: bool) -> None:
        """Note what is used of a captured variant: what serves it in eager mode counts before what does in another."""
        if eager or not self.decisions.get(kernel.origin.variant.id, "").startswith(DECISION_USE):
            self.decisions[kernel.origin.variant.id] = decision

    def _refuse(self, kernel: _Certified, wrong: str) -> None:
        """Leave out a kernel that the judge found right and that is wrong where a model would call it."""
        detail = f"right in the judge's runner, wrong through dispatch: {wrong}"
        self._store(
            kernel, Rejected(reason=RejectReason.WRONG_VALUE, case="calls through dispatch", detail=detail), 0.0
        )
        self._skip(kernel, detail)

    def _store(self, kernel: _Certified, verdict: Rejected, seconds: float) -> None:
        """One more trial of the candidate, which stands from now on: it is nobody's best any more."""
        if kernel.record is kernel.origin:
            self._append(kernel.candidate, verdict, seconds)

    def _append(self, candidate: Candidate, verdict: Rejected, seconds: float) -> None:
        self.project.append(
            Trial(candidate=candidate, outcome=verdict, started=time.time() - seconds, seconds=seconds)
        )  # fmt: skip

    def _turn_down(self, kernel: _Certified, timings: ModeTimings) -> Entry:
        least, timing = kernel.record.variant.min_elements, timings.timed["eager"]
        decisions = timings.decisions()
        reasons = [d.reason for mode, d in decisions.items() if mode in timings.timed and isinstance(d, Off)]
        reason = f"also from {least} elements on " if kernel.record is not kernel.origin else ""
        reason += "; ".join(reasons)
        if timing.busy:
            reason += f" (others used {timing.foreign_cpu_share:.0%} of the CPUs: export again when it is quiet)"
        if not self.decisions.get(kernel.origin.variant.id, "").startswith(DECISION_USE):
            self._skip(kernel, reason)
        return _entry(kernel, timings, decisions | {"eager": Off(reason=reason)})

    def _forgive(self, record: VariantRecord) -> None:
        """Forget why earlier nodes of a variant were skipped: another one stands for it."""
        self.skipped = [(label, reason) for label, reason in self.skipped if label != record.variant.label]
        self.decisions.pop(record.variant.id, None)

    def _skip(self, kernel: _Certified, reason: str) -> None:
        self.skipped.append((kernel.origin.variant.label, reason))
        self.decisions[kernel.origin.variant.id] = DECISION_EAGER + reason


def _in_words(verdict: Rejected | WorkerFailure) -> str:
    if isinstance(verdict, WorkerFailure):
        return f"the judge could not judge: {verdict.detail}"
    return f"{verdict.reason}: {verdict.case}: {verdict.detail}"


def _entry(kernel: _Certified, timings: ModeTimings | None, decisions: Mapping[str, Decision]) -> Entry:
    """Args: decisions: those for modes that it leaves out are off. timings: None before there are any."""
    off = Off(reason=NOT_MEASURED)
    entry = make_entry(
        variant=kernel.record.variant, candidate=kernel.candidate, scored=kernel.scored, share=kernel.record.share,
        decisions={mode: decisions.get(mode, off) for mode in MODES}, node=kernel.node,
    )  # fmt: skip
    if timings is None:
        return entry
    measurement: Mapping[str, Json] = {**entry.measurement, "modes": timings.to_json()}
    return replace(entry, measurement=measurement)


def _header(project: Project) -> Header:
    import torch

    from kernelforge import __version__
    from kernelforge.dispatch.machine import driver_version

    device_name = torch.cuda.get_device_name(0) if project.device == "cuda" else ""
    return Header(
        name=project.model, device=project.device, torch=torch.__version__.split("+")[0],
        created_by=f"kernelforge {__version__}", device_name=device_name,
        driver=driver_version() if project.device == "cuda" else "",
    )  # fmt: skip
