"""`kforge op show VARIANT`: one variant with its sizes and trials."""

from __future__ import annotations

from kernelforge.cli.options import ProjectOption, VariantArgument
from kernelforge.cli.output import Output
from kernelforge.cli.projects import find_project
from kernelforge.cli.verb import verb


@verb
def show(out: Output, variant: VariantArgument, project: ProjectOption = None) -> None:
    """Show one variant: sizes and trials.

    Its call, the sizes that vary, and every trial. A unique prefix of its id is enough.
    """
    from kernelforge import forge
    from kernelforge.report.tables import dim_grid, trial_grid, variant_grid

    folder = find_project(project)
    report = forge.show_variant(folder, variant)
    grids = [variant_grid(report.row)]
    if report.dims:
        grids.append(dim_grid(report.dims))
    if report.trials:
        grids.append(trial_grid(report.trials))
    out.show(report.to_json(), grids)
    out.next_step(f"kforge forge {folder} {report.row.label}")
