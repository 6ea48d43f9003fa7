"""`kforge log NODE`: what happened to one kernel."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from kernelforge.cli.options import VARIANT_NAMES, ProjectOption
from kernelforge.cli.output import Output
from kernelforge.cli.projects import find_project
from kernelforge.cli.variants import variant_of_node, with_variant
from kernelforge.cli.verb import verb

if TYPE_CHECKING:
    from kernelforge.report.logs import LogPhase


class Phase(StrEnum):
    """As `report.logs.PHASES`, which a test keeps equal; repeated, so that `--help` loads nothing."""

    LINEAGE = "lineage"
    ASK = "ask"
    CALL = "call"
    PROPOSE = "propose"
    COMPILE = "compile"
    VALIDATE = "validate"
    BENCH = "bench"
    AUDIT = "audit"
    AGAIN = "again"


@verb
def log(
    out: Output,
    node: Annotated[str, typer.Argument(metavar="NODE", help="A trial's number, or a unique prefix of its node's id.")],
    *,
    variant: Annotated[
        str,
        typer.Option("--variant", "-V", help=f"Only needed for numbers. {VARIANT_NAMES}", show_default=False),
    ] = "",
    phase: Annotated[
        Phase | None,
        typer.Option("--phase", help="Only this part; call: with prompts and replies.", show_default=False),
    ] = None,
    project: ProjectOption = None,
) -> None:
    """Show what happened to a trial, step by step.

    What it comes from, who was asked for what, how it was built, what the judge found and measured.
    """
    from kernelforge import forge

    folder = find_project(project, option=True)
    named = variant or variant_of_node(folder, node)
    only: LogPhase | None = None if phase is None else phase.value
    report = with_variant(folder, named, lambda name: forge.trial_log(folder, name, node, phase=only))
    out.show_text(report.to_json(), report.text())
