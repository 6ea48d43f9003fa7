"""`kforge op show VARIANT`: one variant with its sizes and trials, one of its trials, or its candidates' prelude."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kernelforge.cli.options import BackendName, ProjectOption, VariantArgument
from kernelforge.cli.output import Output
from kernelforge.cli.projects import find_project
from kernelforge.cli.variants import with_variant
from kernelforge.cli.verb import verb
from kernelforge.errors import NotFound, UsageError

if TYPE_CHECKING:
    from kernelforge.report.rows import VariantReport


@verb
def show(
    out: Output,
    variant: VariantArgument,
    project: ProjectOption = None,
    *,
    prelude: Annotated[
        bool,
        typer.Option("--prelude", help="Print only the C declarations that a candidate of it is compiled with."),
    ] = False,
    backend: Annotated[
        BackendName | None, typer.Option("--backend", help="Of --prelude. Default: that of the project's device.")
    ] = None,
    trial: Annotated[
        str | None,
        typer.Option(
            "--trial", metavar="N", help="Explain only this trial: its number, or a unique prefix of its node's id."
        ),
    ] = None,
) -> None:
    """Show one variant: sizes and trials.

    Its call, the sizes that vary, and every trial. A unique prefix of its id is enough.
    """
    from kernelforge import forge
    from kernelforge.report.tables import dim_grid, trial_grid, variant_grid

    if backend is not None and not prelude:
        raise UsageError("--backend says which prelude to print", hint="add --prelude")
    if trial is not None and prelude:
        raise UsageError("--trial and --prelude print different things", hint="leave one of them")
    folder = find_project(project, option=True)
    if trial is not None:
        _show_trial(out, variant, trial, folder=folder)
        return
    report = with_variant(folder, variant, lambda name: forge.show_variant(folder, name))
    if prelude:
        _show_prelude(out, report, backend=backend or report.backend, folder=folder)
        return
    grids = [variant_grid(report.row)]
    if report.dims:
        grids.append(dim_grid(report.dims))
    if report.trials:
        grids.append(trial_grid(report.trials))
    out.show(report.to_json(), grids)
    if report.has_template:
        out.next_step("forge", folder, report.row.label)
    elif report.preludes:  # else it can have no kernel at all, also none by hand
        _suggest_eval(out, report, folder=folder)


def _show_trial(out: Output, variant: str, trial: str, *, folder: Path) -> None:
    from kernelforge import forge
    from kernelforge.report.judgement_tables import trial_grids

    report = with_variant(folder, variant, lambda name: forge.show_trial(folder, name, trial))
    out.show(report.to_json(), trial_grids(report))
    if report.trial.outcome == "accepted":
        out.next_step("audit", report.trial.number, "--variant", report.label, "--project", folder)


def _show_prelude(out: Output, report: VariantReport, *, backend: str, folder: Path) -> None:
    label, text = report.row.label, report.preludes.get(backend)
    if text is None:
        raise NotFound(f"no candidate can be made for {label}: {report.row.decision}")
    out.show_text({"variant": report.row.variant, "backend": backend, "prelude": text}, text)
    if backend == report.backend:
        _suggest_eval(out, report, folder=folder)


def _suggest_eval(out: Output, report: VariantReport, *, folder: Path) -> None:
    file = "kernel.cu" if report.backend == "cuda" else "kernel.cpp"
    out.next_step("eval", file, "--variant", report.row.label, "--project", folder)
