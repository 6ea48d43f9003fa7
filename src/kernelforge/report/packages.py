"""Turns a package into what `kforge cast` reports of it. Pure."""

from __future__ import annotations

from dataclasses import replace

from kernelforge.package.trust import Trust, Trusted
from kernelforge.package.types import Entry, Package, Use
from kernelforge.report.evaluation import interval_of, recorded_interval
from kernelforge.report.rows import DECISION_EAGER, DECISION_USE, CheckRow, EntryRow, PackageReport
from kernelforge.wording import speedup_words


def package_report(
    package: Package, *, path: str, size_bytes: int, checks: tuple[CheckRow, ...], trust: Trust | None = None
) -> PackageReport:
    """The package as it is reported.

    Args:
        path, size_bytes: of its file. checks: what was looked at beside the structure.
        trust: whether it may be loaded here, if that was asked.
    """
    header = package.header
    environment = {"torch": _line(header.torch), "created by": _line(header.created_by)}
    if header.device_name:
        environment["GPU"] = _line(header.device_name)
    if header.driver:
        environment["driver"] = _line(header.driver)
    if header.unchecked:
        environment["memory unchecked"] = ", ".join(header.unchecked)
    return PackageReport(
        path=path, model=_line(header.name), device=_line(header.device), format=header.format_version,
        size_bytes=size_bytes, entries=tuple(map(_row, package.entries)), environment=environment, checks=checks,
        digest=package.digest, signer=package.signer, trusted=isinstance(trust, Trusted),
        trust="" if trust is None else str(trust),
    )  # fmt: skip


def _line(text: object) -> str:
    """What others wrote, in one line: more of them could look like lines of ours."""
    return " ".join(str(text).split())


def _row(entry: Entry) -> EntryRow:
    variant = entry.variant
    # What serves only larger sizes has an id of its own, as its guard is another, and so a name that no project knows.
    origin = replace(variant, min_elements=0).label if variant.min_elements else ""
    return EntryRow(
        variant=variant.id, label=variant.label, operator=variant.operator, describe=_line(variant.describe()),
        backend=entry.binary.backend, target=_line(entry.binary.target), speedup=recorded_interval(entry.measurement),
        audit=_line(entry.audit.get("kind", "")), origin=origin, least_elements=variant.min_elements,
        made_by=_line(entry.provenance.get("model") or entry.provenance.get("generator") or "unknown"),
        decisions={mode: _decision(entry, mode) for mode in entry.decisions},
    )  # fmt: skip


def _decision(entry: Entry, mode: str) -> str:
    """With the speed-up there, of a mode beside eager: that one's stands for itself."""
    decision = entry.decision(mode)
    if not isinstance(decision, Use):
        return DECISION_EAGER + _line(decision.reason)
    found = None if mode == "eager" else interval_of(entry.measured(mode).get("speedup"))
    return DECISION_USE + ("" if found is None else f": {speedup_words(found.median, found.low, found.high)}")
