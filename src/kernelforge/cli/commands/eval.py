"""`kforge eval FILE`: judge one candidate that a person or another program wrote."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kernelforge.cli.options import VARIANT_NAMES, ProjectOption, ProtocolName
from kernelforge.cli.output import Output
from kernelforge.cli.projects import find_project
from kernelforge.cli.variants import with_variant
from kernelforge.cli.verb import verb
from kernelforge.errors import UsageError

if TYPE_CHECKING:
    from kernelforge.report.judgement import EvalReport

WRONG, NOT_COMPILED, FLAGGED = 4, 5, 7
SUFFIXES = (".cpp", ".cc", ".cxx", ".cu")


@verb
def evaluate(
    out: Output,
    source: Annotated[Path, typer.Argument(metavar="FILE", help="Source with `launch`, see docs/abi.md.")],
    variant: Annotated[str, typer.Option("--variant", "-V", help=VARIANT_NAMES)],
    project: ProjectOption = None,
    *,
    certify: Annotated[
        bool, typer.Option("--certify", help="After the gate also the complete certificate, as before an export.")
    ] = False,
    protocol: Annotated[
        ProtocolName,
        typer.Option("--protocol", help="paper: show the original paper's protocol beside ours; it decides nothing."),
    ] = ProtocolName.OURS,
) -> None:
    """Judge one candidate file.

    Builds, verifies, times and audits it. Exit code 0 means accepted; `kforge --help` lists the others.
    """
    from kernelforge import forge
    from kernelforge.report.judgement_tables import evaluation_grids

    refuse_other_files(source, variant)
    folder = find_project(project, option=True)
    paper = protocol is ProtocolName.PAPER
    report = with_variant(
        folder,
        variant,
        lambda name: forge.evaluate_file(source, project=folder, variant=name, certify=certify, paper=paper),
    )
    out.show(report.to_json(), evaluation_grids(report, certify=certify))
    if report.outcome == "accepted" and report.audit != "torch" and not certify:
        out.note("its memory is not checked, nor is it tried on the complete set of cases: the certificate does both")
        out.next_step("eval", source, "--variant", variant, "--certify", "--project", folder)
    else:
        which = ("--trial", report.number) if report.outcome != "accepted" and report.number else ()
        out.next_step("op", "show", variant, *which, "--project", folder)
    if code := exit_code_of(report):
        raise typer.Exit(code)


def refuse_other_files(source: Path, variant: str) -> None:
    """What is no kernel by its name would become a trial that does not compile, and stay in the project."""
    if source.suffix.lower() not in SUFFIXES:
        missing = "" if source.exists() else "does not exist, and "
        endings = f"{', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]}"
        raise UsageError(
            f"{source} {missing}is no kernel source: its name does not end in {endings}",
            hint=f"name a C++ or CUDA file with `launch`; `kforge op show {variant} --prelude` shows its declarations",
        )


def exit_code_of(report: EvalReport) -> int:
    """0 accepted, 4 wrong, 5 does not compile, 7 does not do the work itself, 1 could not be judged.

    A certificate that was asked for counts like the gate.
    """
    if report.outcome != "accepted":
        return outcome_code(report.outcome, report.reason)
    if report.certificate is not None and report.certificate.outcome != "accepted":
        return outcome_code(report.certificate.outcome, report.certificate.reason)
    return 0 if report.audit in ("generated", "torch") else FLAGGED


def outcome_code(outcome: str, reason: str) -> int:
    """The exit code of a candidate that was not accepted."""
    if outcome == "rejected":
        return FLAGGED if reason in {"delegated", "tamper"} else WRONG
    return NOT_COMPILED if outcome == "build_failure" else 1
