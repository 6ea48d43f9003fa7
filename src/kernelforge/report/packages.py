"""What a package's entries are called elsewhere. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from kernelforge.package.types import Entry
from kernelforge.report.rows import PackageReport


def with_origins(report: PackageReport, entries: Sequence[Entry]) -> PackageReport:
    """The report, with the captured variant's name for each entry that serves only its larger sizes.

    Such an entry has an id of its own, as its guard is another, and so a name that no project knows.
    """
    narrowed = {e.variant.id: e.variant for e in entries if e.variant.min_elements}
    rows = tuple(
        replace(
            row, origin=replace(narrowed[row.variant], min_elements=0).label,
            least_elements=narrowed[row.variant].min_elements,
        ) if row.variant in narrowed else row
        for row in report.entries
    )  # fmt: skip
    return replace(report, entries=rows)
