"""`kforge export PROJECT -o m.cast`: pack the best valid kernels."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kernelforge.cli.options import Modes, ProjectArgument, names_in
from kernelforge.cli.output import Output
from kernelforge.cli.progress import Progress
from kernelforge.cli.projects import find_project
from kernelforge.cli.variants import with_variants
from kernelforge.cli.verb import verb
from kernelforge.errors import UsageError


@verb
def export(
    out: Output,
    project: ProjectArgument = None,
    *,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Default: PROJECT.cast, here.")
    ] = None,
    pick: Annotated[
        list[str] | None,
        typer.Option("--pick", metavar="VARIANT=NODE", help="Take this node, if it is valid, rather than the fastest."),
    ] = None,
    allow_unchecked: Annotated[
        bool, typer.Option("--allow-unchecked", help="Export kernels also if their memory cannot be checked here.")
    ] = False,
    modes: Modes = None,
) -> None:
    """Pack the fastest valid kernels.

    Writes a .cast package with the fastest valid kernel of each variant.
    """
    from kernelforge import forge
    from kernelforge.report.tables import export_grids

    folder = find_project(project)
    target = output or Path(folder.stem + ".cast")
    picks = parse_picks(pick or [])
    with Progress(out) as progress:
        report = with_variants(
            folder,
            tuple(picks),
            lambda names: forge.export_project(
                folder,
                output=target,
                picks=dict(zip(names, picks.values(), strict=True)),
                allow_unchecked=allow_unchecked,
                modes=names_in(modes),
                on_event=progress,
            ),
        )
    out.show(report.to_json(), export_grids(report))
    out.next_step(*(("cast", "verify", target) if report.entries else ("forge", folder)))


def parse_picks(texts: list[str]) -> dict[str, str]:
    """["VARIANT=NODE", ...] as a mapping.

    Raises:
        UsageError: not of that form, or a variant twice.
    """
    picks: dict[str, str] = {}
    for text in texts:
        variant, _, node = text.partition("=")
        if not variant or not node:
            raise UsageError(
                f"not a pick: {text!r}", hint="write --pick VARIANT=NODE; `kforge op show` lists the nodes"
            )
        if variant in picks:
            raise UsageError(f"two picks for {variant}", hint="leave one")
        picks[variant] = node
    return picks
