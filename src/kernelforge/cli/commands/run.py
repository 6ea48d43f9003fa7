"""`kforge run MODEL`: everything in one verb, from capture to a package that was tried on the whole model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kernelforge.cli.interrupt import Interrupt
from kernelforge.cli.options import (
    Device,
    Dtype,
    MaxTime,
    ProjectOption,
    RandomWeights,
    RequireSpeedup,
    Samples,
    Source,
)
from kernelforge.cli.output import Output
from kernelforge.cli.progress import Progress
from kernelforge.cli.projects import default_project
from kernelforge.cli.verb import OUT_OF_BUDGET, require_speedup_of, verb


@verb
def run(
    out: Output,
    source: Source,
    *,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Package. Default: named after the model.")
    ] = None,
    max_time: MaxTime = None,
    project: ProjectOption = None,
    device: Device = None,
    dtype: Dtype = None,
    samples: Samples = 1,
    random_weights: RandomWeights = False,
    require_speedup: RequireSpeedup = None,
    allow_unchecked: Annotated[
        bool, typer.Option("--allow-unchecked", help="Export kernels also if their memory cannot be checked here.")
    ] = False,
    no_library: Annotated[
        bool, typer.Option("--no-library", help="Neither try the kernels kept on this machine nor keep new ones.")
    ] = False,
) -> None:
    """Do it all: capture, forge, export, measure.

    Stops after --max-time; stopping early keeps what was found.
    """
    from kernelforge import forge
    from kernelforge.report.tables import facts_grid, operator_grid, package_line, whole_model_grid

    target = output or default_project(source).with_suffix(".cast")
    with Interrupt(out) as interrupt, Progress(out) as progress:
        report = forge.run_source(
            source,
            output=target,
            max_time_s=max_time,
            project=project,
            device=device,
            dtype=dtype,
            samples=samples,
            random_weights=random_weights,
            allow_unchecked=allow_unchecked,
            library=not no_library,
            on_event=progress,
            should_stop=interrupt.should_stop,
        )
    grids = [operator_grid(report.rows, width=out.width())]
    if report.whole_model is not None:
        grids.append(whole_model_grid([report.whole_model]))
    if line := package_line(report):
        grids.append(facts_grid([("package", line)]))
    out.show(report.to_json(), grids)
    if interrupt.exit_code or report.stopped in OUT_OF_BUDGET:
        out.resume()
    if interrupt.exit_code:
        raise typer.Exit(interrupt.exit_code)
    require_speedup_of(report.rows, require_speedup)
    out.next_step(*(("cast", "inspect", report.package) if report.package else ("ops", report.project)))
