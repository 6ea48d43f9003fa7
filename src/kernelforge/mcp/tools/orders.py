"""`next_order` and `get_context`: what a client is asked to write, and all that it must know for it."""

from __future__ import annotations

from typing import Annotated

from mcp.server.mcpserver import Context
from mcp.types import CallToolResult
from pydantic import Field

from kernelforge.mcp.desk import Desk, Job, reply, work
from kernelforge.mcp.outputs import Next, Order
from kernelforge.mcp.tools.arguments import OrderName, ProjectName, VariantName

_SUBMIT = (
    "Here that answer goes to the tool `submit_candidate` with order {order!r}: the file as `source`, without the "
    "fence, and the lines as `notes`."
)


async def next_order(
    context: Context[Desk],
    *,
    project: ProjectName = "",
    operators: Annotated[
        list[str] | None, Field(description="Only for these operators, labels or id prefixes of variants.")
    ] = None,
    parent: Annotated[
        str | int,
        Field(description="What to revise, of the one variant in `operators`: a trial's number. Empty: the search's."),
    ] = "",
) -> Annotated[CallToolResult, Next]:
    """Take the next work order: which kernel to write or revise now, and all that its author must know.

    The search picks the variant where most time can be won, and the kernel to revise. Read the prompt, write the one
    C++ or CUDA file that it asks for, and hand it in with submit_candidate. An order holds for a day; take several to
    work on several at once.
    """

    def verb(desk: Desk, _job: Job) -> Next:
        from kernelforge import forge

        report = forge.next_order(desk.folder(project), operators=operators or (), parent=str(parent))
        return Next.model_validate(report.to_json())

    found = await work(context, verb)
    if found.order is None:
        reasons = [f"{label}: {why}" for label, why in found.parked.items()]
        return reply("\n".join(["no variant has use for a kernel now", *reasons]), found)
    _add_how_to_submit(found.order)
    return reply(_text(found.order), found)


async def get_context(
    context: Context[Desk],
    *,
    project: ProjectName = "",
    order: OrderName = "",
    variant: VariantName = "",
) -> Annotated[CallToolResult, Order]:
    """Read an order again: prompt, prelude, the kernel to revise and the history, as they are now.

    With a variant in the place of an order: what an order to revise its best kernel would say. Takes no order.
    """

    def verb(desk: Desk, _job: Job) -> Order:
        from kernelforge import forge

        report = forge.order_context(desk.folder(project), order=order, variant=variant)
        return Order.model_validate(report.to_json())

    found = await work(context, verb)
    _add_how_to_submit(found)
    return reply(_text(found), found)


def _add_how_to_submit(order: Order) -> None:
    if order.order:
        order.prompt = f"{order.prompt.rstrip()}\n{_SUBMIT.format(order=order.order)}\n"


def _text(order: Order) -> str:
    head = f"order {order.order} ({order.state})" if order.order else "no order; next_order takes one"
    return f"{head}, {order.label}, {order.reason or 'the best kernel'}\n\n{order.prompt}"
