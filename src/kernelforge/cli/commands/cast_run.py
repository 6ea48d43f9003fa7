"""`kforge cast run FILE MODEL`: a model with and without a package."""

from __future__ import annotations

from typing import Annotated

import typer

from kernelforge.cli.commands.cast import PackageFile
from kernelforge.cli.options import Device, Dtype, MaxTime, RandomWeights, Samples, Source, Trust, names_in
from kernelforge.cli.output import Output
from kernelforge.cli.progress import Progress
from kernelforge.cli.trusting import offer_trust
from kernelforge.cli.verb import WRONG, verb


@verb
def run(
    out: Output,
    package: PackageFile,
    source: Source,
    *,
    modes: Annotated[
        str | None,
        typer.Option(
            "--modes",
            metavar="LIST",
            help="Of eager, graphed, compiled and reduce-overhead. Default: eager, and graphed on a GPU.",
        ),
    ] = None,
    max_time: MaxTime = None,
    device: Device = None,
    dtype: Dtype = None,
    samples: Samples = 1,
    random_weights: RandomWeights = False,
    trust: Trust = None,
) -> None:
    """Compare a model with and without a package.

    Runs it both ways in turn: outputs are compared, times paired. Exit code 4 if outputs differ.
    """
    from kernelforge import forge
    from kernelforge.report.package_tables import package_run_grids

    trusted = tuple(trust or ())
    offer_trust(out, package, given=trusted)
    with Progress(out) as progress:
        report = forge.run_with_package(
            package,
            source,
            trust=trusted,
            ways=names_in(modes),
            device=device,
            dtype=dtype,
            samples=samples,
            random_weights=random_weights,
            max_time_s=max_time,
            on_event=progress,
        )
    out.show(report.to_json(), package_run_grids(report))
    if not report.matches:
        raise typer.Exit(WRONG)
