"""`kforge forge PROJECT [OPS...]`: search for faster kernels; resumes what was begun."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from kernelforge.cli.interrupt import Interrupt
from kernelforge.cli.options import MaxTime, ProjectArgument, RequireSpeedup
from kernelforge.cli.output import Output
from kernelforge.cli.progress import Progress
from kernelforge.cli.projects import project_and_names
from kernelforge.cli.variants import with_variants
from kernelforge.cli.verb import OUT_OF_BUDGET, require_speedup_of, verb


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
    strategy: Annotated[
        str,
        typer.Option(
            "--strategy",
            metavar="NAME",
            help="Which kernel is revised next: autotune, best-first, best-of-n, beam, linear, mcts or paper-mcts. "
            "Default: autotune for templates.",
        ),
    ] = "",
    no_library: Annotated[
        bool, typer.Option("--no-library", help="Do not try the kernels kept on this machine.")
    ] = False,
    plan: Annotated[
        bool,
        typer.Option("--plan", help="Print what the budget would be spent on and what the model may gain; no trial."),
    ] = False,
    require_speedup: RequireSpeedup = None,
) -> None:
    """Search for faster kernels; resumes.

    Makes, checks and times kernels for a project's variants, until the first limit. Ctrl-C stops cleanly; the same
    command resumes.
    """
    from kernelforge import forge as verbs
    from kernelforge.report.plan import plan_grids
    from kernelforge.report.tables import LEAST_SHARE, operator_grid
    from kernelforge.report.units import format_duration
    from kernelforge.search.types import Budget
    from kernelforge.wording import plural

    folder, names = project_and_names(project, operators or ())
    budget = Budget(trials=trials, seconds=max_time, tokens=budget_tokens, usd=budget_usd)
    if plan:
        planned = with_variants(
            folder,
            names,
            lambda known: verbs.plan_forge(
                folder, operators=known, budget=budget, policy=policy.value, library=not no_library
            ),
        )
        out.show(planned.to_json(), plan_grids(planned, width=out.width(), least_share=LEAST_SHARE))
        out.next_step(*(word for word in out.arguments if word != "--plan"))
        return
    with Interrupt(out) as interrupt, Progress(out) as progress:
        report = with_variants(
            folder,
            names,
            lambda known: verbs.forge_project(
                folder,
                operators=known,
                budget=budget,
                strategy=strategy,
                policy=policy.value,
                library=not no_library,
                on_event=progress,
                should_stop=interrupt.should_stop,
            ),
        )
    cost = f", {report.tokens:,} tokens" if report.tokens else ""
    cost += f", ${report.usd:.2f}" if report.usd else ""
    out.note(f"{plural(report.trials, 'trial')} in {format_duration(report.seconds)}{cost}; ended by: {report.stopped}")
    out.show(report.to_json(), [operator_grid(report.rows, width=out.width())])
    if interrupt.exit_code or report.stopped in OUT_OF_BUDGET:
        out.resume()
    if interrupt.exit_code:
        raise typer.Exit(interrupt.exit_code)
    require_speedup_of(report.rows, require_speedup)
    out.next_step("export", folder, "-o", f"{folder.stem}.cast")
