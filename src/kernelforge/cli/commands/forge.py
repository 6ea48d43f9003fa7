"""`kforge forge PROJECT [OPS...]`: search for faster kernels; resumes what was begun."""

from __future__ import annotations

from typing import Annotated

import typer

from kernelforge.cli.interrupt import Interrupt
from kernelforge.cli.options import MaxTime, ProjectArgument, RequireSpeedup
from kernelforge.cli.output import Output
from kernelforge.cli.progress import Progress
from kernelforge.cli.projects import project_and_names
from kernelforge.cli.verb import OUT_OF_BUDGET, require_speedup_of, verb


@verb
def forge(
    out: Output,
    project: ProjectArgument = None,
    operators: Annotated[
        list[str] | None,
        typer.Argument(metavar="OPS", help="Operators, labels or id prefixes, also without PROJECT. Default: all."),
    ] = None,
    *,
    trials: Annotated[int | None, typer.Option("--trials", min=1, help="At most so many trials in this run.")] = None,
    max_time: MaxTime = None,
    strategy: Annotated[
        str,
        typer.Option(
            "--strategy",
            metavar="NAME",
            help="Which kernel is revised next: autotune, best-first, best-of-n, beam, linear, mcts or paper-mcts. "
            "Default: autotune for templates.",
        ),
    ] = "",
    require_speedup: RequireSpeedup = None,
) -> None:
    """Search for faster kernels; resumes.

    Makes, checks and times kernels for a project's variants. Ctrl-C stops cleanly; the same command resumes.
    """
    from kernelforge import forge as verbs
    from kernelforge.report.tables import operator_grid
    from kernelforge.report.units import format_duration
    from kernelforge.search.types import Budget

    folder, names = project_and_names(project, operators or ())
    with Interrupt(out) as interrupt, Progress(out) as progress:
        report = verbs.forge_project(
            folder,
            operators=names,
            budget=Budget(trials=trials, seconds=max_time),
            strategy=strategy,
            on_event=progress,
            should_stop=interrupt.should_stop,
        )
    out.note(f"{report.trials} trials in {format_duration(report.seconds)}; ended by: {report.stopped}")
    out.show(report.to_json(), [operator_grid(report.rows, width=out.width())])
    if interrupt.exit_code or report.stopped in OUT_OF_BUDGET:
        out.resume()
    if interrupt.exit_code:
        raise typer.Exit(interrupt.exit_code)
    require_speedup_of(report.rows, require_speedup)
    out.next_step("export", folder, "-o", f"{folder.stem}.cast")
