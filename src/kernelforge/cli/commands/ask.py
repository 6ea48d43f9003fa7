"""`kforge ask` and `kforge tell`: work orders for a coding agent or a person, and the verdicts on what they wrote."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kernelforge.cli.commands.forge import PolicyName
from kernelforge.cli.interrupt import Interrupt
from kernelforge.cli.options import ProjectOption
from kernelforge.cli.output import Output
from kernelforge.cli.projects import find_project
from kernelforge.cli.variants import with_variants
from kernelforge.cli.verb import verb


@verb
def ask(
    out: Output,
    operators: Annotated[
        list[str] | None, typer.Argument(metavar="OPS", help="Operators, labels or id prefixes. Default: all.")
    ] = None,
    *,
    output: Annotated[Path, typer.Option("--output", "-o", metavar="DIR", help="Where the orders' folders go.")],
    count: Annotated[int, typer.Option("--count", "-n", min=1, max=100, help="At most so many orders.")] = 1,
    project: ProjectOption = None,
    parent: Annotated[
        str,
        typer.Option(
            "--parent", metavar="NODE", help="What to revise: a trial's number, or a unique prefix of its node's id."
        ),
    ] = "",
    strategy: Annotated[
        str,
        typer.Option("--strategy", metavar="NAME", help="Which kernel is revised, as of `forge`. Default: best-first."),
    ] = "",
    policy: Annotated[PolicyName, typer.Option("--policy", help="Which variant is next, as of `forge`.")] = (
        PolicyName.GAIN
    ),
) -> None:
    """Ask for kernels: write work orders as folders.

    Each has PROMPT.md, the prelude, the kernel to revise, and what earlier ones taught. Write the kernel into it, and
    judge it with `kforge tell`, also on another machine.
    """
    from kernelforge import forge
    from kernelforge.report.asking import ask_grid

    folder = find_project(project, option=True)
    report = with_variants(
        folder,
        operators or (),
        lambda names: forge.ask_orders(
            folder, operators=names, output=output, count=count, parent=parent, strategy=strategy, policy=policy.value
        ),
    )
    out.show(report.to_json(), [ask_grid(report)])
    if report.rows:
        out.next_step("tell", output, "--project", folder)


@verb
def tell(
    out: Output,
    folders: Annotated[
        list[Path], typer.Argument(metavar="DIR", help="Folders of orders, or folders that hold such folders.")
    ],
    *,
    project: ProjectOption = None,
    model: Annotated[str, typer.Option("--model", metavar="NAME", help="Who wrote the kernels, for the record.")] = "",
    profile: Annotated[
        bool, typer.Option("--profile", help="Profile what is accepted, and say in the verdict what limits it (CUDA).")
    ] = False,
) -> None:
    """Judge the kernels that were written for work orders.

    All of them in one go. Verdicts are stored, and put beside the kernels as VERDICT.md and verdict.json. What was
    judged before is left alone, unless the file has changed since.
    """
    from kernelforge import forge
    from kernelforge.report.asking import tell_grid

    folder = find_project(project, option=True)
    with Interrupt(out, note="stopping after the kernel that is judged now (once more to kill it)") as interrupt:
        report = forge.tell_orders(
            folder, folders, model=model, profile=profile, on_event=lambda said: out.note(str(said)),
            should_stop=interrupt.should_stop,
        )  # fmt: skip
    out.show(report.to_json(), [tell_grid(report)])
    judged = [row for row in report.rows if row.outcome]
    if judged:
        out.next_step("tree", judged[-1].label, "--project", folder)
    if interrupt.exit_code:
        raise typer.Exit(interrupt.exit_code)
