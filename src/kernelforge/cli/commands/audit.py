"""`kforge audit NODE`: who really does the work of a stored node, with the evidence."""

from __future__ import annotations

from typing import Annotated

import typer

from kernelforge.cli.commands.eval import FLAGGED, outcome_code
from kernelforge.cli.options import VARIANT_NAMES, ProjectOption
from kernelforge.cli.output import Output
from kernelforge.cli.projects import find_project
from kernelforge.cli.variants import with_variant
from kernelforge.cli.verb import verb


@verb
def audit(
    out: Output,
    node: Annotated[str, typer.Argument(metavar="NODE", help="Unique prefix of a node's id; with -V also a number.")],
    variant: Annotated[str, typer.Option("--variant", "-V", help=VARIANT_NAMES, show_default=False)] = "",
    project: ProjectOption = None,
) -> None:
    """Show who does a node's work.

    The stored label, its binary audited again, and the same source run with a launch that does nothing. Exit code 7:
    it does not do the work itself.
    """
    from kernelforge import forge
    from kernelforge.report.judgement_tables import audit_grids

    folder = find_project(project, option=True)
    report = with_variant(folder, variant, lambda name: forge.audit_node(folder, node, variant=name))
    out.show(report.to_json(), audit_grids(report))
    if report.outcome != "accepted":
        out.next_step("op", "show", report.variant_label, "--trial", report.number, "--project", folder)
        raise typer.Exit(outcome_code(report.outcome, report.reason))
    if not report.own_work:
        raise typer.Exit(FLAGGED)
