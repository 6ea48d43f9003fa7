"""`kforge profile VARIANT`: what limits stored kernels, by the GPU's profiler."""

from __future__ import annotations

from typing import Annotated

import typer

from kernelforge.cli.options import ProjectOption, VariantArgument
from kernelforge.cli.output import Output
from kernelforge.cli.projects import find_project
from kernelforge.cli.variants import with_variant
from kernelforge.cli.verb import verb
from kernelforge.errors import EnvironmentMissing


@verb
def profile(
    out: Output,
    variant: VariantArgument,
    trials: Annotated[
        list[str] | None,
        typer.Argument(metavar="TRIAL", help="Numbers, or prefixes of their nodes' ids. Default: the best."),
    ] = None,
    *,
    again: Annotated[bool, typer.Option("--again", help="Measure also what was profiled before.")] = False,
    project: ProjectOption = None,
) -> None:
    """Profile kernels: what limits them, in sentences.

    Runs one call of each under NVIDIA's ncu (CUDA only) and keeps what it says: prompts and verdicts tell it from then
    on. All metrics are in the JSON. Exit code 6: none could be profiled.
    """
    from kernelforge import forge

    folder = find_project(project, option=True)
    report = with_variant(
        folder,
        variant,
        lambda name: forge.profile_trials(
            folder, name, trials or (), again=again, on_event=lambda said: out.note(str(said))
        ),
    )
    out.show_text(report.to_json(), report.text())
    if report.rows and not any(row.profile for row in report.rows):
        raise typer.Exit(EnvironmentMissing.exit_code)
