"""`kforge eval FILE`: judge one candidate that a person or another program wrote."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kernelforge.cli.options import ProjectOption
from kernelforge.cli.output import Output
from kernelforge.cli.projects import find_project
from kernelforge.cli.verb import verb

if TYPE_CHECKING:
    from kernelforge.report.rows import EvalReport

WRONG, NOT_COMPILED, FLAGGED = 4, 5, 7


@verb
def evaluate(
    out: Output,
    source: Annotated[Path, typer.Argument(metavar="FILE", help="Source with `launch`, see docs/abi.md.")],
    variant: Annotated[str, typer.Option("--variant", "-V", help="Label or unique prefix of the variant's id.")],
    project: ProjectOption = None,
) -> None:
    """Judge one candidate file.

    Builds, verifies, times and audits it. Exit code 0 means accepted; `kforge --help` lists the others.
    """
    from kernelforge import forge
    from kernelforge.report.tables import evaluation_grid

    folder = find_project(project)
    report = forge.evaluate_file(source, project=folder, variant=variant)
    out.show(report.to_json(), [evaluation_grid(report)])
    if code := exit_code_of(report):
        raise typer.Exit(code)
    out.next_step("op", "show", variant, "--project", folder)


def exit_code_of(report: EvalReport) -> int:
    """0 accepted, 4 wrong, 5 does not compile, 7 does not do the work itself, 1 could not be judged."""
    if report.outcome == "accepted":
        return 0 if report.audit == "generated" else FLAGGED
    if report.outcome == "rejected":
        return FLAGGED if report.reason in {"delegated", "tamper"} else WRONG
    return NOT_COMPILED if report.outcome == "build_failure" else 1
