"""`kforge cast inspect|verify FILE`: look into a package, and check it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from kernelforge.cli.output import Output
from kernelforge.cli.verb import verb

INVALID = 3

PackageFile: TypeAlias = Annotated[Path, typer.Argument(metavar="FILE", help="A .cast package.")]


@verb
def inspect(out: Output, package: PackageFile) -> None:
    """Show what a package holds.

    Runs nothing of it.
    """
    from kernelforge import forge
    from kernelforge.report.tables import package_grids

    report = forge.inspect_package(package)
    out.show(report.to_json(), package_grids(report))
    out.next_step("cast", "verify", package)


@verb
def verify(out: Output, package: PackageFile) -> None:
    """Check a package.

    Its structure, checksums, and whether its kernels can run here. Exit code 3 if a check fails.
    """
    from kernelforge import forge
    from kernelforge.report.tables import package_grids

    report = forge.verify_package(package)
    out.show(report.to_json(), package_grids(report))
    if not report.valid:
        raise typer.Exit(INVALID)
    if any(entry.in_use for entry in report.entries):
        out.note(f"next: in Python: kernelforge.load({str(package)!r})")
    else:
        out.note("the package is intact, but uses no kernel: loading it changes nothing")
