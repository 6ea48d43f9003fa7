"""From winners to a package: certify, write, time each entry through the real dispatch path, decide, write again.

An entry's decision for eager mode is taken here: the kernel must beat the original call by `MIN_SPEEDUP_LOW` beyond the
noise when both are called from Python as a model calls them, so that a microsecond won by the kernel and lost by the
guard does not count.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from kernelforge.certification import time_through_dispatch
from kernelforge.evaluate.types import Scored, WorkerFailure
from kernelforge.package.serial import make_entry
from kernelforge.package.types import Entry, Header, Off, Use
from kernelforge.package.writer import write_package
from kernelforge.report.rows import DECISION_EAGER, ExportReport
from kernelforge.search.winners import MIN_SPEEDUP_LOW, Choice, choose_winners
from kernelforge.settings import Settings
from kernelforge.verify.types import Accepted, Rejected

if TYPE_CHECKING:
    from kernelforge.evaluate.judge import Judge
    from kernelforge.store.project import Project

NOT_MEASURED = "not measured in this mode"


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """A written package and what was decided.

    Attributes:
        decisions: variant id -> decision for the operator table, for variants that the certificate turned down.
    """

    report: ExportReport
    decisions: Mapping[str, str]


def export(
    project: Project,
    output: Path,
    *,
    judge: Judge,
    settings: Settings,
    picks: Mapping[str, str] | None = None,
    say: Callable[[str], None],
) -> Exported:
    """Write the project's winners as a package.

    Raises:
        NotFound, UsageError: a pick names nothing, or nothing valid. PackageError: the file cannot be written.
    """
    choices = choose_winners(project, picks)
    skipped = [(c.record.variant.label, c.reason) for c in choices if c.node is None]
    decisions: dict[str, str] = {}
    entries: list[Entry] = []
    for choice in choices:
        if choice.node is None:
            continue
        assert isinstance(choice.node.outcome, Scored)
        say(f"certifying {choice.record.variant.label}")
        scored = _with_binary(choice.node.outcome, project)
        verdict = judge.certify(scored.artifact, choice.record, project.examples)
        if isinstance(verdict, Accepted):
            entries.append(_entry(choice, replace(scored, verdict=verdict)))
            continue
        reason = f"certificate: {_in_words(verdict)}"
        skipped.append((choice.record.variant.label, reason))
        decisions[choice.record.variant.id] = DECISION_EAGER + reason
    header = _header(project)
    picked = frozenset(project.record(prefix).variant.id for prefix in picks or {})
    decided = (
        _decide(entries, output, header=header, project=project, settings=settings, picked=picked, say=say)
        if entries
        else []
    )
    for before, after in zip(entries, decided, strict=True):
        decision = after.decision("eager")
        if isinstance(decision, Off):
            skipped.append((before.variant.label, decision.reason))
            decisions[before.variant.id] = DECISION_EAGER + decision.reason
    package = write_package(output, decided, header=header)
    used = sum(isinstance(e.decision("eager"), Use) for e in package.entries)
    report = ExportReport(path=str(output), entries=used, skipped=tuple(skipped), size_bytes=output.stat().st_size)
    return Exported(report=report, decisions=decisions)


def _in_words(verdict: Rejected | WorkerFailure) -> str:
    if isinstance(verdict, WorkerFailure):
        return f"the judge could not judge: {verdict.detail}"
    return f"{verdict.reason}: {verdict.case}: {verdict.detail}"


def _with_binary(scored: Scored, project: Project) -> Scored:
    """The trial with its artifact where the project keeps it; the build cache may be gone."""
    path = project.binary(scored.artifact.digest)
    return replace(scored, artifact=replace(scored.artifact, path=path))


def _entry(choice: Choice, scored: Scored) -> Entry:
    assert choice.node is not None
    off = Off(reason=NOT_MEASURED)
    return make_entry(
        variant=choice.record.variant, candidate=choice.node.candidate, scored=scored, share=choice.record.share,
        decisions={"eager": Use(), "graphed": off, "compiled": off}, node=choice.node.id,
    )  # fmt: skip


def _decide(
    entries: Sequence[Entry],
    output: Path,
    *,
    header: Header,
    project: Project,
    settings: Settings,
    picked: frozenset[str],
    say: Callable[[str], None],
) -> list[Entry]:
    """Each entry with its decision for eager mode, from a timing through the dispatch path of a provisional package.

    Args:
        picked: variants whose kernel was picked by hand: used whatever its time. Only validity is not for hands.
    """
    provisional = output.with_name(f".{output.name}.provisional")
    try:
        write_package(provisional, entries, header=header)
        decided = []
        for entry, timing in zip(
            entries, time_through_dispatch(provisional, entries, project, settings, say), strict=True
        ):
            if timing.interval.low > MIN_SPEEDUP_LOW or entry.variant.id in picked:
                decision: Use | Off = Use()
            else:
                i = timing.interval
                decision = Off(
                    reason=f"through dispatch not faster beyond noise: {i.median:.2f}x [{i.low:.2f}, {i.high:.2f}]"
                )
            measurement = {**entry.measurement, "dispatch": timing.to_json()}
            decided.append(replace(entry, decisions={**entry.decisions, "eager": decision}, measurement=measurement))
        return decided
    finally:
        provisional.unlink(missing_ok=True)


def _header(project: Project) -> Header:
    import torch

    from kernelforge import __version__

    device_name = torch.cuda.get_device_name(0) if project.device == "cuda" else ""
    return Header(
        name=project.model, device=project.device, torch=torch.__version__.split("+")[0],
        created_by=f"kernelforge {__version__}", device_name=device_name,
    )  # fmt: skip
