"""`kforge tree VARIANT` and `kforge diff NODE [NODE]`: how a variant's kernels came out of each other."""

from __future__ import annotations

from typing import Annotated

import typer

from kernelforge.cli.options import VARIANT_NAMES, ProjectOption, VariantArgument
from kernelforge.cli.output import Output
from kernelforge.cli.projects import find_project
from kernelforge.cli.variants import variant_of_node, with_variant
from kernelforge.cli.verb import verb

_NODES = "A trial's number, or a unique prefix of its node's id."


@verb
def tree(out: Output, variant: VariantArgument, project: ProjectOption = None) -> None:
    """Show a variant's revision tree.

    Each trial below the one that it revises, with what came of it. Slower and failed ones are kept.
    """
    from kernelforge import forge
    from kernelforge.report.trees import tree_grid

    folder = find_project(project, option=True)
    report = with_variant(folder, variant, lambda name: forge.variant_tree(folder, name))
    out.show(report.to_json(), [tree_grid(report)])
    best = next((row.trial for row in report.rows if row.best), None)
    if best is not None and not best.parent:
        out.next_step("op", "show", report.label, "--trial", best.number, "--project", folder)
    elif best is not None:
        out.next_step("diff", best.number, "--variant", report.label, "--project", folder)
    elif not report.rows:
        out.next_step("forge", folder, report.label)


@verb
def diff(
    out: Output,
    node: Annotated[str, typer.Argument(metavar="NODE", help=_NODES)],
    other: Annotated[str, typer.Argument(metavar="OTHER", help=f"What it is compared with. {_NODES}")] = "",
    *,
    variant: Annotated[
        str,
        typer.Option("--variant", "-V", help=f"Only needed for numbers. {VARIANT_NAMES}", show_default=False),
    ] = "",
    project: ProjectOption = None,
) -> None:
    """Show what a trial changed.

    The difference of its source from that of OTHER, by default of the trial that it revises.
    """
    from kernelforge import forge

    folder = find_project(project, option=True)
    named = variant or variant_of_node(folder, node, other)
    report = with_variant(folder, named, lambda name: forge.diff_trials(folder, name, node, other))
    out.show_text(report.to_json(), report.text)
