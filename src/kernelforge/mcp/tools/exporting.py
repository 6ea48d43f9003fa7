"""`export`: from a project to a package."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from mcp.server.mcpserver import Context
from mcp.types import CallToolResult
from pydantic import Field

from kernelforge.mcp.child import run_command
from kernelforge.mcp.desk import Desk, Job, reply, work
from kernelforge.mcp.outputs import Exported
from kernelforge.mcp.tools.arguments import ProjectName
from kernelforge.wording import plural, speedup_words


async def export(
    context: Context[Desk],
    *,
    project: ProjectName = "",
    output: Annotated[
        str, Field(description="The package to write. Default: beside the project, with its name and .cast.")
    ] = "",
    allow_unchecked: Annotated[
        bool, Field(description="Export kernels also if their memory cannot be checked on this machine.")
    ] = False,
) -> Annotated[CallToolResult, Exported]:
    """Certify the fastest valid kernels and pack those into a .cast file that are faster where a model calls them.

    Takes up to some minutes: each kernel gets its complete certificate, and is timed once more through dispatch. What
    is left out is listed with the reason. Use the package with `kernelforge.load(path)` in Python.
    """

    def verb(desk: Desk, job: Job) -> Exported:
        folder = desk.folder(project)
        named = folder if folder.name else folder.absolute()
        target = Path(output) if output else named.parent / f"{named.stem}.cast"
        arguments = ["export", "--json", "--output", str(target)]
        arguments += ["--allow-unchecked"] if allow_unchecked else []
        with desk.kept.alone(say=job.say, should_stop=job.should_stop):
            document = run_command([*arguments, "--", str(folder)], say=job.say, should_stop=job.should_stop)
        return Exported.model_validate(document)

    exported = await work(context, verb)
    lines = [f"{exported.path}: {plural(exported.entries, 'kernel')} in use"]
    for used in exported.used:
        low, median, high = used.dispatch.low, used.dispatch.median, used.dispatch.high
        if low is not None and median is not None and high is not None:
            lines.append(f"used     {used.label}: {speedup_words(median, low, high)}")
    lines += [f"left out {skipped.variant}: {skipped.reason}" for skipped in exported.skipped]
    return reply("\n".join(lines), exported)
