"""The library's kernels as plain data and as tables. Owns its reports."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kernelforge.benchmark.types import Interval
from kernelforge.digest import Json
from kernelforge.report.grid import Cell, Column, Grid, Record
from kernelforge.report.tables import facts_grid
from kernelforge.report.units import format_interval, format_speedup
from kernelforge.wording import plural

if TYPE_CHECKING:
    from kernelforge.library.folder import Library
    from kernelforge.library.types import StoredKernel

SHORT_ID = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class LibraryRow:
    """One kernel of the library.

    Attributes:
        id: of the kernel. variant, label: id and name of the captured variant. describe: the variant in words.
        device: GPU and architecture, or CPU target. toolchain: the backend's words for compiler and device.
        torch: major and minor version. model: that it was first made for. generator, notes: of its first candidate.
        speedup: the judge's, over all captured sizes. dispatch: through the dispatch path, at the sizes it serves.
        least_elements: from how many elements on it was used; 0: at every size. certified: POSIX seconds.
    """

    id: str
    variant: str
    label: str
    describe: str
    backend: str
    device: str
    toolchain: str
    torch: str
    model: str
    generator: str
    notes: str
    speedup: Interval
    dispatch: Interval
    least_elements: int
    certified: float

    def to_json(self) -> dict[str, Json]:
        return {
            "id": self.id, "variant": self.variant, "label": self.label, "describe": self.describe,
            "backend": self.backend, "device": self.device, "toolchain": self.toolchain, "torch": self.torch,
            "model": self.model, "generator": self.generator, "notes": self.notes,
            "speedup": _interval(self.speedup), "dispatch": _interval(self.dispatch),
            "least_elements": self.least_elements, "certified": self.certified,
        }  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class LibraryReport:
    """The whole library. enabled: False if the environment switches it off."""

    path: str
    enabled: bool
    kernels: tuple[LibraryRow, ...]

    def to_json(self) -> dict[str, Json]:
        return {"path": self.path, "enabled": self.enabled, "kernels": [k.to_json() for k in self.kernels]}


@dataclass(frozen=True, slots=True, kw_only=True)
class LibraryKernelReport:
    """One kernel with its source."""

    row: LibraryRow
    source: str

    def to_json(self) -> dict[str, Json]:
        return {**self.row.to_json(), "source": self.source}


@dataclass(frozen=True, slots=True, kw_only=True)
class RemovedReport:
    """What was removed from the library at `path`."""

    path: str
    removed: int

    @property
    def sentence(self) -> str:
        return f"{self.path}: removed {plural(self.removed, 'kernel')}"

    def to_json(self) -> dict[str, Json]:
        return {"path": self.path, "removed": self.removed}


def library_report(library: Library, *, enabled: bool) -> LibraryReport:
    """All kernels that can be read, by operator and variant, the fastest first."""
    rows = tuple(library_row(k) for k in library.kernels())
    return LibraryReport(path=str(library.folder), enabled=enabled, kernels=rows)


def kernel_report(kernel: StoredKernel) -> LibraryKernelReport:
    """One kernel."""
    return LibraryKernelReport(row=library_row(kernel), source=kernel.source)


def library_row(kernel: StoredKernel) -> LibraryRow:
    """A kernel without its source."""
    variant, origin = kernel.variant, kernel.origin
    return LibraryRow(
        id=kernel.id, variant=variant.id, label=variant.label, describe=variant.describe(), backend=kernel.backend,
        device=origin.device, toolchain=origin.toolchain, torch=origin.torch, model=kernel.model,
        generator=kernel.generator, notes=kernel.notes, speedup=kernel.speedup, dispatch=kernel.dispatch,
        least_elements=kernel.least_elements, certified=kernel.certified,
    )  # fmt: skip


def library_grid(report: LibraryReport) -> Grid:
    """The library as a table, one kernel a line."""
    columns = (
        Column(title="kernel"), Column(title="variant"), Column(title="dispatch", align="right"),
        Column(title="95% interval", align="right"), Column(title="device"), Column(title="certified"),
        Column(title="made for"), Column(title="how", flexible=True),
    )  # fmt: skip
    records = tuple(
        Record((
            Cell(row.id[:SHORT_ID]), Cell(row.label), Cell(format_speedup(row.dispatch.median), "good"),
            Cell(format_interval(row.dispatch.low, row.dispatch.high), "dim"), Cell(row.device),
            Cell(_date(row.certified)), Cell(row.model), Cell(row.notes or row.generator),
        ))
        for row in report.kernels
    )  # fmt: skip
    off = "" if report.enabled else "; switched off by KFORGE_LIBRARY"
    footer = f"{plural(len(report.kernels), 'kernel')} in {report.path}{off}"
    return Grid(columns=columns, records=records, footer=(footer,))


def library_kernel_grid(row: LibraryRow) -> Grid:
    """What is known of one kernel."""
    serves = f"used from {plural(row.least_elements, 'element')} on" if row.least_elements else "used at every size"
    return facts_grid([
        ("kernel", row.id), ("variant", row.label), ("", row.describe), ("certified", _date(row.certified)),
        ("search", _interval_text(row.speedup)), ("dispatch", f"{_interval_text(row.dispatch)}, {serves}"),
        ("device", row.device), ("tool chain", row.toolchain), ("torch", row.torch), ("made for", row.model),
        ("made by", ", ".join(p for p in (row.generator, row.notes) if p)),
    ])  # fmt: skip


def _date(posix_s: float) -> str:
    return time.strftime("%Y-%m-%d", time.gmtime(posix_s))


def _interval_text(interval: Interval) -> str:
    return f"{format_speedup(interval.median)} {format_interval(interval.low, interval.high)}"


def _interval(interval: Interval) -> Json:
    return {"median": interval.median, "low": interval.low, "high": interval.high}
