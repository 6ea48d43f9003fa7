"""`capture`: from a model to a project."""

from __future__ import annotations

from typing import Annotated, Literal

from mcp.server.mcpserver import Context
from mcp.types import CallToolResult
from pydantic import Field

from kernelforge.mcp.child import run_command
from kernelforge.mcp.desk import Desk, Job, reply, work
from kernelforge.mcp.outputs import Captured
from kernelforge.mcp.tools.arguments import ProjectName
from kernelforge.wording import plural


async def capture(
    context: Context[Desk],
    *,
    model: Annotated[
        str,
        Field(
            description="A Python file with Model, get_inputs and get_init_inputs; package.module:factory; "
            "torchvision:NAME; or transformers:CONFIG."
        ),
    ],
    project: ProjectName = "",
    device: Annotated[
        Literal["cpu", "cuda"] | None, Field(description="Default: cuda if there is a GPU, else cpu.")
    ] = None,
    dtype: Annotated[
        Literal["float32", "float16", "bfloat16"] | None, Field(description="Cast the model. Default: as it is.")
    ] = None,
    samples: Annotated[int, Field(ge=1, description="How many sets of inputs to run.")] = 1,
    random_weights: Annotated[bool, Field(description="Do not load weights; draw them at random.")] = False,
    shapes: Annotated[
        Literal["auto", "exact"],
        Field(description="auto: sizes that differ between calls become named dims; exact: one variant each."),
    ] = "auto",
    overwrite: Annotated[bool, Field(description="Replace a project that exists, with all its trials.")] = False,
) -> Annotated[CallToolResult, Captured]:
    """Run a PyTorch model once and record its operator calls in a new project. The first step, from an empty folder.

    The model runs unmodified, in a process of its own. What is captured are variants: groups of calls of one operator,
    each of which one kernel can serve. Go on with list_operators or next_order.
    """

    def verb(desk: Desk, job: Job) -> Captured:
        arguments = ["capture", "--json", "--output", str(desk.folder(project))]
        arguments += ["--samples", str(samples), "--shapes", shapes]
        arguments += ["--device", device] if device else []
        arguments += ["--dtype", dtype] if dtype else []
        arguments += ["--random-weights"] if random_weights else []
        arguments += ["--overwrite"] if overwrite else []
        # Beside a judgement both would be timed wrongly.
        with desk.kept.alone(say=job.say, should_stop=job.should_stop):
            job.say("running the model")
            document = run_command([*arguments, "--", model], say=job.say, should_stop=job.should_stop)
        return Captured.model_validate(document)

    captured = await work(context, verb)
    share = f"{captured.coverage_wall:.0%}" if captured.coverage_wall is not None else "an unknown part"
    lines = [
        f"{captured.project}: {plural(captured.variants, 'variant')} with {plural(captured.calls, 'call')} of "
        f"{captured.model} on {captured.device}, {share} of its time",
        *(f"warning: {warning}" for warning in captured.warnings),
    ]
    return reply("\n".join(lines), captured)
