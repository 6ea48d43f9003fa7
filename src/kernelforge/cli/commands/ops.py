"""`kforge ops PROJECT`: the operator table."""

from __future__ import annotations

from typing import Annotated

import typer

from kernelforge.cli.options import ProjectArgument
from kernelforge.cli.output import Output
from kernelforge.cli.projects import find_project
from kernelforge.cli.verb import verb


@verb
def ops(
    out: Output,
    project: ProjectArgument = None,
    *,
    show_all: Annotated[
        bool, typer.Option("--all", help="Also what was never tried and takes less than 0.1% of the time.")
    ] = False,
) -> None:
    """Show the operator table of a project.

    One line a variant: share, eager, best, floor, speed-up, and what would be dispatched.
    """
    from kernelforge import forge
    from kernelforge.report.tables import LEAST_SHARE, operator_grid

    folder = find_project(project)
    rows = forge.list_operators(folder)
    least = 0.0 if show_all else LEAST_SHARE
    table = operator_grid(rows, width=out.width(), least_share=least, how_to_see_all="--all shows them")
    out.show([r.to_json() for r in rows], [table])
    if any(r.decision == "pending" for r in rows):
        out.next_step("forge", folder)
    else:
        out.next_step("export", folder, "-o", f"{folder.stem}.cast")
