"""`kforge demo`: the whole system on two real models, on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kernelforge.cli.options import Device, MaxTime
from kernelforge.cli.output import Output
from kernelforge.cli.progress import Progress
from kernelforge.cli.verb import verb


@verb
def demo(
    out: Output,
    max_time: MaxTime = None,
    work_dir: Annotated[
        Path | None,
        typer.Option("--work-dir", metavar="FOLDER", help="Keep projects and packages here. Default: a temporary one."),
    ] = None,
    device: Device = None,
) -> None:
    """Try the whole system on two real models.

    Makes a ResNet-50 and a small Qwen3-like decoder faster, and says by how much, whatever it is.
    """
    from kernelforge import forge
    from kernelforge.report.package_tables import packages_grid
    from kernelforge.report.tables import LEAST_SHARE, demo_line, operator_grid, whole_model_grid

    with Progress(out) as progress:
        report = forge.demo(max_time_s=max_time, work_dir=work_dir, device=device, on_event=progress)
    tables = [
        operator_grid(rows, width=out.width(), title=f"{name} on {report.device}", least_share=LEAST_SHARE)
        for name, rows in report.rows.items()
    ]
    tables.append(whole_model_grid(list(report.whole_model.values())))
    if report.runs:
        tables.append(packages_grid(report.runs))
    out.show(report.to_json(), tables)
    out.note(demo_line(report.seconds, report.peak_rss_bytes))
    out.next_step("run", "YOUR_MODEL.py", "--max-time", "3m", "-o", "model.cast")
