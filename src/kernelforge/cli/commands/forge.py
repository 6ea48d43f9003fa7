"""`kforge forge PROJECT [OPS...]`: search for faster kernels; resumes what was begun."""

from __future__ import annotations

import math
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kernelforge.cli.interrupt import Interrupt
from kernelforge.cli.options import MaxTime, ProjectArgument, RequireSpeedup
from kernelforge.cli.output import Output
from kernelforge.cli.progress import Progress
from kernelforge.cli.projects import project_and_names
from kernelforge.cli.variants import with_variants
from kernelforge.cli.verb import OUT_OF_BUDGET, require_speedup_of, verb
from kernelforge.errors import UsageError

if TYPE_CHECKING:
    from kernelforge.report.rows import ForgeReport


class PolicyName(StrEnum):
    """How trials are shared out among the variants."""

    GAIN = "gain"
    UNIFORM = "uniform"


@verb
def forge(
    out: Output,
    project: ProjectArgument = None,
    operators: Annotated[
        list[str] | None,
        typer.Argument(metavar="OPS", help="Operators, labels or id prefixes, also without PROJECT. Default: all."),
    ] = None,
    *,
    trials: Annotated[int | None, typer.Option("--trials", min=1, help="At most so many trials in this run.")] = None,
    max_time: MaxTime = None,
    budget_tokens: Annotated[
        int | None,
        typer.Option(
            "--budget-tokens", metavar="N", min=1, help="At most so many tokens of language models, read and written."
        ),
    ] = None,
    budget_usd: Annotated[
        float | None,
        typer.Option("--budget-usd", metavar="USD", min=0.01, help="At most so many dollars for language models."),
    ] = None,
    policy: Annotated[
        PolicyName,
        typer.Option(
            "--policy",
            help="Which variant gets the next trial: gain, where it can win most of the model's time; uniform, each "
            "as many, none parked.",
        ),
    ] = PolicyName.GAIN,
    generator: Annotated[
        str,
        typer.Option(
            "--generator",
            metavar="NAME",
            help="Who writes the kernels: template, or a language model as llm:PROVIDER/MODEL (docs/llm.md).",
        ),
    ] = "template",
    strategy: Annotated[
        str,
        typer.Option(
            "--strategy",
            metavar="NAME",
            help="Which kernel is revised next: autotune, best-first, best-of-n, beam, linear, mcts or paper-mcts. "
            "Default: autotune for templates, else best-first.",
        ),
    ] = "",
    record: Annotated[
        Path | None,
        typer.Option(
            "--record",
            metavar="FILE",
            help="Write a language model's search to this file, one proposal at a time; kforge replay runs it again.",
            show_default=False,
        ),
    ] = None,
    no_library: Annotated[
        bool, typer.Option("--no-library", help="Do not try the kernels kept on this machine.")
    ] = False,
    plan: Annotated[
        bool,
        typer.Option("--plan", help="Print what the budget would be spent on and what the model may gain; no trial."),
    ] = False,
    detach: Annotated[
        bool, typer.Option("--detach", "-d", help="Search in the background, and print the run's id.")
    ] = False,
    devices: Annotated[
        str,
        typer.Option(
            "--devices", metavar="GPUS", help="One worker for each of these GPUs: all, or their indices as in 0,1."
        ),
    ] = "",
    require_speedup: RequireSpeedup = None,
) -> None:
    """Search for faster kernels; resumes.

    Makes, checks and times kernels for a project's variants, until the first limit. Ctrl-C stops cleanly; the same
    command resumes.
    """
    from kernelforge import forge as verbs
    from kernelforge.search.types import Budget

    if budget_usd is not None and not math.isfinite(budget_usd):
        raise UsageError("--budget-usd is no number of dollars", hint="leave it out for no limit")
    folder, names = project_and_names(project, operators or ())
    chosen: dict[str, Any] = {
        "budget": Budget(trials=trials, seconds=max_time, tokens=budget_tokens, usd=budget_usd),
        "generator": generator,
        "policy": policy.value,
        "library": not no_library,
    }
    if record is not None and (detach or devices or plan):
        raise UsageError(
            "only a search in the foreground can be recorded", hint="leave --detach, --devices, --plan out"
        )
    if detach and (plan or require_speedup is not None):
        other = "--plan" if plan else "--require-speedup"
        raise UsageError(f"--detach has no result that {other} could show", hint="leave one of them out")
    if (detach or devices) and not plan:
        started = with_variants(
            folder,
            names,
            lambda known: verbs.start_run(folder, operators=known, strategy=strategy, devices=devices, **chosen),
        )
        if detach:
            out.show_text(started.to_json(), started.id)
            out.next_step("runs", "attach", started.id, "-p", folder)
            return
    if plan:
        from kernelforge.report.plan import plan_grids
        from kernelforge.report.tables import LEAST_SHARE

        planned = with_variants(
            folder,
            names,
            lambda known: verbs.plan_forge(folder, operators=known, **chosen),
        )
        out.show(planned.to_json(), plan_grids(planned, width=out.width(), least_share=LEAST_SHARE))
        out.next_step(*(word for word in out.arguments if word != "--plan"))
        return
    with Interrupt(out) as interrupt, Progress(out) as progress:
        if devices:
            report = _follow(folder, started.id, progress, interrupt)
        else:
            report = with_variants(
                folder,
                names,
                lambda known: verbs.forge_project(
                    folder,
                    operators=known,
                    strategy=strategy,
                    record=record,
                    on_event=progress,
                    should_stop=interrupt.should_stop,
                    **chosen,
                ),
            )
    show_result(out, report)
    if interrupt.exit_code or report.stopped in OUT_OF_BUDGET:
        out.resume()
    if interrupt.exit_code:
        raise typer.Exit(interrupt.exit_code)
    require_speedup_of(report.rows, require_speedup)
    out.next_step("export", folder, "-o", f"{folder.stem}.cast")


def show_result(out: Output, report: ForgeReport) -> None:
    """What a search did: how many trials and why it ended, how busy its lanes were, the operators."""
    from kernelforge.report.tables import operator_grid

    for line in report.lines:
        out.note(line)
    out.show(report.to_json(), [operator_grid(report.rows, width=out.width())])


def _follow(folder: Path, run: str, progress: Progress, interrupt: Interrupt) -> ForgeReport:
    """Watch the workers of several devices; what stops a search in this process stops them."""
    from kernelforge import forge as verbs

    told = False

    def should_leave() -> bool:
        nonlocal told
        if interrupt.should_stop() and not told:
            told = True
            with suppress(UsageError):  # it has just ended
                verbs.control_run([folder], run, "stop")
        return False

    try:
        followed = verbs.follow_run([folder], run, on_event=progress, should_leave=should_leave)
    except KeyboardInterrupt:
        with suppress(UsageError):
            verbs.control_run([folder], run, "cancel")
        raise
    assert followed.report is not None, "it was followed to its end"
    return followed.report
