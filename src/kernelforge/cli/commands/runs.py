"""`kforge runs ls|attach|pause|resume|stop|cancel`: searches in the background. docs/runs.md says more."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, TypeAlias

import typer

from kernelforge.cli.commands.forge import show_result
from kernelforge.cli.interrupt import Interrupt
from kernelforge.cli.output import Output
from kernelforge.cli.progress import Progress
from kernelforge.cli.projects import projects_here
from kernelforge.cli.verb import verb

RunArgument: TypeAlias = Annotated[
    str, typer.Argument(metavar="RUN", help='Unique prefix of a run\'s id, or "latest".', show_default=False)
]
AnyProject: TypeAlias = Annotated[
    Path | None,
    typer.Option("--project", "-p", metavar="PROJECT", help="Project folder. Default: every *.kforge here."),
]


@verb
def ls(out: Output, *, project: AnyProject = None) -> None:
    """List the runs."""
    from kernelforge import forge
    from kernelforge.report.runs import runs_grid

    rows = forge.list_runs(projects_here(project))
    out.show({"runs": [row.to_json() for row in rows]}, [runs_grid(rows)])
    if not rows:
        out.next_step("forge", *([project] if project else []), "--detach")
    elif rows[-1].pids:
        out.next_step("runs", "attach", rows[-1].id, "-p", rows[-1].project)
    elif rows[-1].state != "finished":
        out.next_step("runs", "resume", rows[-1].id, "-p", rows[-1].project)


@verb
def attach(out: Output, run: RunArgument = "latest", *, project: AnyProject = None) -> None:
    """Watch a run until it ends.

    Ctrl-C only detaches: the run goes on.
    """
    from kernelforge import forge

    projects = projects_here(project)
    with Interrupt(out, note="detaching; the run goes on") as interrupt, Progress(out) as progress:
        followed = forge.follow_run(
            projects, run, on_event=progress, on_past=progress.past, should_leave=interrupt.should_stop
        )
    if followed.report is None:
        out.note(f"run {followed.row.id} goes on; watch it again: kforge runs attach {followed.row.id}")
        raise typer.Exit(interrupt.exit_code)
    show_result(out, followed.report)
    out.next_step("export", followed.row.project, "-o", f"{Path(followed.row.project).stem}.cast")


@verb
def pause(out: Output, run: RunArgument, *, project: AnyProject = None) -> None:
    """Let a run begin no new trial.

    What is under way is finished; the process stays, and keeps its memory on the device.
    """
    _control(out, run, project, "pause", "resume")


@verb
def resume(out: Output, run: RunArgument, *, project: AnyProject = None) -> None:
    """Let a run go on.

    One that is paused; or one that died, failed, was stopped or cancelled, with what is left of its budget.
    """
    _control(out, run, project, "resume", "attach")


@verb
def stop(out: Output, run: RunArgument, *, project: AnyProject = None) -> None:
    """Let a run finish its trial and end.

    Nothing is lost.
    """
    _control(out, run, project, "stop", "resume")


@verb
def cancel(out: Output, run: RunArgument, *, project: AnyProject = None) -> None:
    """Kill a run now.

    With its compilers and kernels. The trial under way is lost, nothing else.
    """
    _control(out, run, project, "cancel", "resume")


@verb
def work(
    out: Output,
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="The run's folder.")],
    worker: Annotated[int, typer.Argument(metavar="WORKER", min=0, help="The worker's number.")],
) -> None:
    """Work on a run; what the background process is called with."""
    import sys

    from kernelforge import forge

    # Ends when whoever started this process has written down that it exists.
    sys.stdin.buffer.read()
    with Interrupt(out) as interrupt:
        forge.work_on_run(folder, worker, should_stop=interrupt.should_stop)


def _control(
    out: Output, run: str, project: Path | None, wish: Literal["pause", "resume", "stop", "cancel"], then: str
) -> None:
    from kernelforge import forge

    row = forge.control_run(projects_here(project), run, wish)
    words = f"run {row.id}: {row.state}"
    if row.state in ("pausing", "stopping"):
        words += " after the trial that is under way"
    out.show_text(row.to_json(), words)
    out.next_step("runs", then, row.id, *(("-p", project) if project else ()))
