"""Turns a package into what `kforge cast` reports of it. Pure."""

from __future__ import annotations

from dataclasses import replace

from kernelforge.package.types import Entry, Package, Use
from kernelforge.report.evaluation import recorded_interval
from kernelforge.report.rows import CheckRow, EntryRow, PackageReport


def package_report(package: Package, *, path: str, size_bytes: int, checks: tuple[CheckRow, ...]) -> PackageReport:
    """The package as it is reported.

    Args:
        path, size_bytes: of its file. checks: what was looked at beside the structure.
    """
    header = package.header
    environment = {"torch": header.torch, "created by": header.created_by}
    if header.device_name:
        environment["GPU"] = header.device_name
    if header.unchecked:
        environment["memory unchecked"] = ", ".join(header.unchecked)
    return PackageReport(
        path=path, model=header.name, device=header.device, format=header.format_version, size_bytes=size_bytes,
        entries=tuple(map(_row, package.entries)), environment=environment, checks=checks,
    )  # fmt: skip


def _row(entry: Entry) -> EntryRow:
    variant = entry.variant
    # What serves only larger sizes has an id of its own, as its guard is another, and so a name that no project knows.
    origin = replace(variant, min_elements=0).label if variant.min_elements else ""
    return EntryRow(
        variant=variant.id, label=variant.label, operator=variant.operator, describe=variant.describe(),
        backend=entry.binary.backend, target=entry.binary.target, speedup=recorded_interval(entry.measurement),
        audit=str(entry.audit.get("kind", "")), origin=origin, least_elements=variant.min_elements,
        decisions={
            mode: "use" if isinstance(decision, Use) else f"eager: {decision.reason}"
            for mode, decision in entry.decisions.items()
        },
    )  # fmt: skip
