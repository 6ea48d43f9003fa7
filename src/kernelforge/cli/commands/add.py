"""`kforge add`: put kernels that somebody wrote into the revision tree."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kernelforge.cli.commands.eval import FLAGGED, outcome_code, refuse_other_files
from kernelforge.cli.interrupt import Interrupt
from kernelforge.cli.options import VARIANT_NAMES, ProjectOption
from kernelforge.cli.output import Output
from kernelforge.cli.projects import find_project
from kernelforge.cli.variants import with_variant
from kernelforge.cli.verb import verb
from kernelforge.errors import UsageError

if TYPE_CHECKING:
    from kernelforge.report.asking import TellReport, ToldRow


@verb
def add(
    out: Output,
    files: Annotated[
        list[Path] | None, typer.Argument(metavar="FILES", help="Sources with `launch`, see docs/abi.md.")
    ] = None,
    *,
    variant: Annotated[str, typer.Option("--variant", "-V", help=VARIANT_NAMES)] = "",
    project: ProjectOption = None,
    parent: Annotated[
        str,
        typer.Option(
            "--parent", metavar="NODE", help="What they revise: a trial's number, or a unique prefix of its node's id."
        ),
    ] = "",
    notes: Annotated[
        str, typer.Option("--notes", metavar="TEXT", help="What is new in them. Default: a first line's comment.")
    ] = "",
    folder: Annotated[
        Path | None,
        typer.Option(
            "--from", metavar="DIR",
            help="Instead of files: a folder of the original system, individual_op_kernels/OPERATOR/kernel.cu.",
        ),
    ] = None,
    judge: Annotated[
        bool, typer.Option("--judge/--no-judge", help="Judge them now; else the next search does, before all others.")
    ] = True,
) -> None:  # fmt: skip
    """Add kernels that a person or another program wrote.

    They are judged like all others, and later searches revise them. Sources with torch::Tensor launch(...) may be added
    too. Exit codes are those of `eval`, of the first file that was not accepted.
    """
    from kernelforge import forge
    from kernelforge.report.asking import add_grid

    _check(files or [], variant, folder, revises=parent or notes)
    place = find_project(project, option=True)
    with Interrupt(out, note="stopping after the kernel that is judged now (once more to kill it)") as interrupt:
        if folder is not None:
            report = forge.add_folder(
                place, folder, judge=judge, on_event=lambda said: out.note(str(said)), should_stop=interrupt.should_stop
            )
        else:
            report = with_variant(
                place, variant,
                lambda name: forge.add_files(
                    place, files or [], variant=name, parent=parent, notes=notes, judge=judge,
                    on_event=lambda said: out.note(str(said)), should_stop=interrupt.should_stop,
                ),
            )  # fmt: skip
    out.show(report.to_json(), [add_grid(report)])
    _say_next(out, report, place)
    if code := interrupt.exit_code or exit_code_of(report, folder=folder is not None):
        raise typer.Exit(code)


def _check(files: list[Path], variant: str, folder: Path | None, *, revises: str) -> None:
    """Refuse what does not go together.

    Raises:
        UsageError: see there.
    """
    if folder is not None:
        if files or variant or revises:
            raise UsageError(
                "--from takes no files, --variant, --parent or --notes", hint="the folders' names are the operators"
            )
        return
    if not files:
        raise UsageError("name at least one file", hint="kforge add kernel.cpp --variant VARIANT, or --from DIR")
    if not variant:
        raise UsageError(f"which variant is {files[0]} for?", hint="add --variant; `kforge ops` lists the variants")
    for file in files:
        refuse_other_files(file, variant)


def _say_next(out: Output, report: TellReport, project: Path) -> None:
    shown = [row for row in report.rows if row.number]
    if shown:
        out.next_step("tree", shown[-1].label, "--project", project)
    elif report.rows:
        out.next_step("forge", "--project", project)


def exit_code_of(report: TellReport, *, folder: bool) -> int:
    """That of the first kernel that was not accepted, as of `eval`; of a folder only if none was accepted.

    A whole folder is tried on everything: that some of it does not fit is no failure.
    """
    codes = [code_of(row) for row in report.rows if row.outcome]
    if folder and 0 in codes:
        return 0
    return next((code for code in codes if code), 0)


def code_of(row: ToldRow) -> int:
    """The exit code of one kernel. One of the torch ABI that is accepted is right, whoever does its work."""
    if row.outcome == "accepted":
        return 0 if row.audit in ("generated", "torch") else FLAGGED
    return outcome_code(row.outcome, row.reason)
