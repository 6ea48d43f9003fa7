"""`submit_candidate` and `get_result`: what the judge says of a kernel."""

from __future__ import annotations

from typing import Annotated

from mcp.server.mcpserver import Context
from mcp.types import CallToolResult
from pydantic import Field

from kernelforge.mcp.desk import Desk, Job, reply, work
from kernelforge.mcp.outputs import Verdict
from kernelforge.mcp.tools.arguments import OrderName, ProjectName, VariantName
from kernelforge.report.asking import VerdictReport


async def submit_candidate(
    context: Context[Desk],
    *,
    order: OrderName,
    source: Annotated[str, Field(description="The whole text of the kernel's file, without the prelude.")],
    project: ProjectName = "",
    notes: Annotated[str, Field(description="What is new in it, in a line: later prompts tell it.")] = "",
    model: Annotated[str, Field(description="Who wrote it, for the record.")] = "",
) -> Annotated[CallToolResult, Verdict]:
    """Build, verify, time and audit a kernel for a work order, and store the trial. Returns the verdict.

    A failed one comes with a diagnosis: mend what it points at and submit to the same order again, which is one more
    attempt. An accepted one says what likely limits it. Takes seconds to a minute; progress says what is under way.
    Kernels that are submitted at once are judged one after the other.
    """

    def verb(desk: Desk, job: Job) -> VerdictReport:
        from kernelforge import forge
        from kernelforge.keeping import PHASES

        job.steps = PHASES
        opener = desk.kept.opener(say=job.say, should_stop=job.should_stop)
        return forge.submit_source(
            desk.folder(project), order, source, notes=notes, model=model, opener=opener,
            on_event=lambda said: job.say(str(said)), should_stop=job.should_stop,
        )  # fmt: skip

    return _reply(await work(context, verb))


async def get_result(
    context: Context[Desk],
    *,
    project: ProjectName = "",
    order: OrderName = "",
    variant: VariantName = "",
    trial: Annotated[
        str | int, Field(description="Of `variant`: the trial's number, or a prefix of its node's id.")
    ] = "",
) -> Annotated[CallToolResult, Verdict]:
    """Read a verdict again, with the kernel's source: by the order, or by the variant and the trial's number."""

    def verb(desk: Desk, _job: Job) -> VerdictReport:
        from kernelforge import forge

        return forge.order_verdict(desk.folder(project), order=order, variant=variant, trial=str(trial))

    return _reply(await work(context, verb))


def _reply(report: VerdictReport) -> CallToolResult:
    verdict = Verdict.model_validate(report.to_json())
    if report.judged is None:
        return reply(report.title, verdict)
    again = f"{report.advice} and submit it again" + (f" to order {report.order}." if report.order else ".")
    return reply(f"# {report.title}\n\n{report.diagnosis}\n\n{again}\n", verdict)
