"""`list_operators`, `tree` and `status`: how a project stands."""

from __future__ import annotations

from typing import Annotated

from mcp.server.mcpserver import Context
from mcp.types import CallToolResult

from kernelforge.mcp.desk import Desk, Job, reply, work
from kernelforge.mcp.outputs import Operators, Status, Tree
from kernelforge.mcp.tools.arguments import ProjectName, VariantName
from kernelforge.report.asking import StatusReport, open_orders_grid
from kernelforge.report.grid import grid_text
from kernelforge.report.rows import OperatorRow
from kernelforge.report.tables import operator_grid
from kernelforge.report.trees import TreeReport, tree_grid


async def list_operators(context: Context[Desk], *, project: ProjectName = "") -> Annotated[CallToolResult, Operators]:
    """List the variants of a project, largest share of the model's time first.

    For each PyTorch's time, the best kernel's time and speed-up, the floor that no kernel can beat, and what would be
    dispatched.
    """

    def verb(desk: Desk, _job: Job) -> list[OperatorRow]:
        from kernelforge import forge

        return forge.list_operators(desk.folder(project))

    rows = await work(context, verb)
    output = Operators.model_validate({"operators": [row.to_json() for row in rows]})
    return reply(grid_text(operator_grid(rows)), output)


async def tree(
    context: Context[Desk], *, variant: VariantName, project: ProjectName = ""
) -> Annotated[CallToolResult, Tree]:
    """Show how a variant's kernels came out of each other: each trial below the one that it revises, and its outcome.

    Slower and failed ones are kept. get_result shows one with its source and diagnosis.
    """

    def verb(desk: Desk, _job: Job) -> TreeReport:
        from kernelforge import forge

        return forge.variant_tree(desk.folder(project), variant)

    report = await work(context, verb)
    return reply(grid_text(tree_grid(report)), Tree.model_validate(report.to_json()))


async def status(context: Context[Desk], *, project: ProjectName = "") -> Annotated[CallToolResult, Status]:
    """Say how a project stands: its variants with the best speed-ups and trials, and the orders that are open."""

    def verb(desk: Desk, _job: Job) -> StatusReport:
        from kernelforge import forge

        return forge.project_status(desk.folder(project))

    report = await work(context, verb)
    text = f"{grid_text(operator_grid(report.rows))}\n\n{grid_text(open_orders_grid(report.orders))}"
    return reply(text, Status.model_validate(report.to_json()))
