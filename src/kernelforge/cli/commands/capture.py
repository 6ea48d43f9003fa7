"""`kforge capture MODEL`: run a model once and record its operator calls."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kernelforge.cli.options import Device, Dtype, RandomWeights, Samples, Shapes, Source
from kernelforge.cli.output import Output
from kernelforge.cli.projects import default_project
from kernelforge.cli.verb import verb


@verb
def capture(
    out: Output,
    source: Source,
    *,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="PROJECT", help="Project folder. Default: named after the model."),
    ] = None,
    device: Device = None,
    dtype: Dtype = None,
    samples: Samples = 1,
    random_weights: RandomWeights = False,
    shapes: Annotated[
        Shapes,
        typer.Option(
            "--shapes", help="auto: sizes that differ between calls become named dims; exact: one variant each."
        ),
    ] = Shapes.AUTO,
    repeats: Annotated[
        int | None,
        typer.Option(
            "--repeats",
            min=0,
            metavar="N",
            help="Runs made only to time the calls. Default: up to 5, as many as fit into a second.",
        ),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a project that exists.")] = False,
) -> None:
    """Record a model's operator calls in a project.

    Runs the unmodified model and records each call of a high-level operator.
    """
    from kernelforge import forge
    from kernelforge.report.tables import capture_grid

    project = output or default_project(source)
    report = forge.capture_source(
        source,
        project=project,
        device=device,
        dtype=dtype,
        samples=samples,
        random_weights=random_weights,
        shapes=shapes.value,
        repeats=repeats,
        overwrite=overwrite,
    )
    for warning in report.warnings:
        out.note(f"warning: {warning}")
    out.show(report.to_json(), [capture_grid(report)])
    out.next_step("forge", project)
