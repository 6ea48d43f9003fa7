"""`kforge doctor`: what works on this machine, and what to do about the rest."""

from __future__ import annotations

import typer

from kernelforge.cli.output import Output
from kernelforge.cli.verb import verb
from kernelforge.errors import EnvironmentMissing


@verb
def doctor(out: Output) -> None:
    """Check this machine.

    Python, torch, CUDA, compilers, cache, disk, GPUs. Exit code 6 if something is missing.
    """
    from kernelforge.doctor import diagnose
    from kernelforge.report.tables import doctor_grid
    from kernelforge.settings import load_settings

    lines = diagnose(load_settings())
    out.show([line.to_json() for line in lines], [doctor_grid(lines)])
    if any(line.status == "fail" for line in lines):
        raise typer.Exit(EnvironmentMissing.exit_code)
    out.next_step("demo")
