"""`kforge ops PROJECT`: the operator table."""

from __future__ import annotations

from kernelforge.cli.options import ProjectArgument
from kernelforge.cli.output import Output
from kernelforge.cli.projects import find_project
from kernelforge.cli.verb import verb


@verb
def ops(out: Output, project: ProjectArgument = None) -> None:
    """Show the operator table of a project.

    One line a variant: share, eager, best, floor, speed-up, and what would be dispatched.
    """
    from kernelforge import forge
    from kernelforge.report.tables import operator_grid

    folder = find_project(project)
    rows = forge.list_operators(folder)
    out.show([r.to_json() for r in rows], [operator_grid(rows, width=out.width())])
    pending = any(r.decision == "pending" for r in rows)
    out.next_step(f"kforge forge {folder}" if pending else f"kforge export {folder} -o {folder.stem}.cast")
