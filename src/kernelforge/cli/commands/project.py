"""`kforge project pack|unpack|merge`: a project as one file, and two copies of it made one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kernelforge.cli.options import ProjectArgument
from kernelforge.cli.output import Output
from kernelforge.cli.projects import find_project
from kernelforge.cli.verb import verb


@verb
def pack(
    out: Output,
    project: ProjectArgument = None,
    *,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Default: the project's name with .anvil.")
    ] = None,
    examples: Annotated[
        bool, typer.Option("--examples", help="Take the captured tensors along. Without them inputs are drawn anew.")
    ] = False,
) -> None:
    """Write a project into one file.

    Cards, trials and binaries; to forge on another machine, and to merge what was tried there.
    """
    from kernelforge import forge

    folder = find_project(project)
    report = forge.pack_project(folder, output or Path(f"{folder.stem}.anvil"), examples=examples)
    out.show_text(report.to_json(), report.sentence)
    out.next_step("project", "unpack", report.path)


@verb
def unpack(
    out: Output,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Made by `kforge project pack`.")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="PROJECT", help="Default: the file's name with .kforge.")
    ] = None,
    *,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace a project that stands there, with all its trials.")
    ] = False,
) -> None:
    """Make a project of a packed file."""
    from kernelforge import forge

    report = forge.unpack_project(file, output or Path(f"{file.stem}.kforge"), overwrite=overwrite)
    out.show_text(report.to_json(), report.sentence)
    out.next_step("forge", report.path)


@verb
def merge(
    out: Output,
    project: Annotated[Path, typer.Argument(metavar="PROJECT", help="Gets the trials that it lacks.")],
    other: Annotated[Path, typer.Argument(metavar="OTHER", help="Another copy of it: a folder, or a packed file.")],
) -> None:
    """Add what another copy of a project has tried.

    No trial is lost or doubled; OTHER is left as it is.
    """
    from kernelforge import forge

    report = forge.merge_project(project, other)
    out.show_text(report.to_json(), report.sentence)
    out.next_step("ops", project)
