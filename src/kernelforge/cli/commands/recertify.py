"""`kforge cast recertify FILE`: judge and time a package's kernels on this machine."""

from __future__ import annotations

from typing import Annotated

import typer

from kernelforge.cli.commands.cast import PackageFile
from kernelforge.cli.interrupt import Interrupt
from kernelforge.cli.options import MaxTime, Modes, Trust, names_in
from kernelforge.cli.output import Output
from kernelforge.cli.progress import Progress
from kernelforge.cli.trusting import offer_trust
from kernelforge.cli.verb import NOT_CERTIFIED, WRONG, verb


@verb
def recertify(
    out: Output,
    package: PackageFile,
    *,
    check: Annotated[
        bool, typer.Option("--check", help="Judge nothing: only tell, by the exit code, whether it is certified here.")
    ] = False,
    again: Annotated[bool, typer.Option("--again", help="Also what is certified here already.")] = False,
    modes: Modes = None,
    max_time: MaxTime = None,
    trust: Trust = None,
) -> None:
    """Certify a package for this machine.

    On another GPU, under another driver branch or another minor of torch, kernels are off until this has judged and
    timed them there. Nothing is searched. Finished kernels are kept: the same command goes on where it ended.
    """
    from kernelforge import forge
    from kernelforge.report.package_tables import recertify_grids

    trusted = tuple(trust or ())
    if not check:
        offer_trust(out, package, given=trusted)
    stopped_by = 0
    if check:
        report = forge.certification_of(package, trust=trusted)
    else:
        note = "stopping after the kernel that is being judged (once more to kill it)"
        with Interrupt(out, note=note) as interrupt, Progress(out) as progress:
            report = forge.recertify_package(
                package,
                trust=trusted,
                modes=names_in(modes),
                again=again,
                max_time_s=max_time,
                on_event=progress,
                should_stop=interrupt.should_stop,
            )
        stopped_by = interrupt.exit_code
    out.show(report.to_json(), recertify_grids(report))
    if report.stopped:
        out.resume()
    if stopped_by:
        raise typer.Exit(stopped_by)
    if report.rejected:
        raise typer.Exit(WRONG)
    if not report.certified:
        if check:
            out.next_step("cast", "recertify", package)
        raise typer.Exit(NOT_CERTIFIED)
    out.note(f"next: in Python: kernelforge.load({str(package)!r})")
