"""The server: the list of tools, and its life on stdin and stdout. Owns `make_server`, `serve`.

While it serves, the SDK keeps the protocol's streams to itself: whatever else prints on stdout, a user's model or a
compiler, prints on stderr.
"""

from __future__ import annotations

import contextlib
import inspect
import logging
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from types import FrameType

import anyio
import psutil
from mcp.server import MCPServer
from mcp.server.mcpserver.tools import Tool
from mcp.types import CallToolResult, ToolAnnotations
from pydantic import create_model

from kernelforge import __version__
from kernelforge.mcp.desk import Desk
from kernelforge.mcp.tools.capturing import capture
from kernelforge.mcp.tools.exporting import export
from kernelforge.mcp.tools.orders import get_context, next_order
from kernelforge.mcp.tools.projects import list_operators, status, tree
from kernelforge.mcp.tools.verdicts import get_result, submit_candidate
from kernelforge.mcp.wire import answering_stdio

logger = logging.getLogger(__name__)

INSTRUCTIONS = """Make a PyTorch model faster with kernels that you write, judged by a judge that trusts nothing.
capture a model, then repeat: next_order, write the kernel, submit_candidate, mend it by the diagnosis. export packs the
fastest valid kernels. All state is in the project's folder; several clients may work on it at once."""

READS = ToolAnnotations(read_only_hint=True, open_world_hint=False)
ADDS = ToolAnnotations(read_only_hint=False, destructive_hint=False, open_world_hint=False)
REPLACES = ToolAnnotations(read_only_hint=False, destructive_hint=True, open_world_hint=False)
"""capture and export replace what they are told to write to; capture runs the user's model, which may do anything."""

TOOLS: tuple[tuple[Callable[..., Awaitable[CallToolResult]], ToolAnnotations], ...] = (
    (capture, REPLACES), (list_operators, READS), (next_order, ADDS), (get_context, READS), (submit_candidate, ADDS),
    (get_result, READS), (tree, READS), (status, READS), (export, REPLACES),
)  # fmt: skip

END_S = 1.0
"""So long a judgement may take to end by itself when the client is gone; clients kill what lives after two seconds."""


def make_server(desk: Desk) -> MCPServer[Desk]:
    """The server with all tools."""

    @asynccontextmanager
    async def lifespan(_: MCPServer[Desk]) -> AsyncIterator[Desk]:
        yield desk

    return MCPServer(
        "kernelforge", version=__version__, instructions=INSTRUCTIONS, lifespan=lifespan, log_level="WARNING",
        tools=[_tool(function, annotations) for function, annotations in TOOLS],
    )  # fmt: skip


def serve(project: Path | None) -> None:
    """Serve one client over stdin and stdout until it closes stdin, or SIGINT or SIGTERM comes.

    Does not return: threads that wait for a client, or judge for one, would hold the process.
    """
    desk = Desk(project=project)

    def on_signal(number: int, _frame: FrameType | None) -> None:
        _end(desk, 128 + number)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, on_signal)
    code = 1
    try:
        anyio.run(_serve_lines, make_server(desk))
        code = 0
    except Exception:
        logger.exception("the server failed")
    finally:
        _end(desk, code)


async def _serve_lines(server: MCPServer[Desk]) -> None:
    """What the SDK's own `run("stdio")` does, with our transport: it takes none."""
    below = server._lowlevel_server
    async with answering_stdio() as (messages, answers):
        await below.run(messages, answers, below.create_initialization_options())


def _tool(function: Callable[..., Awaitable[CallToolResult]], annotations: ToolAnnotations) -> Tool:
    """A tool that refuses arguments which it does not know: a misspelt one must not be taken for the default."""
    description = inspect.cleandoc(function.__doc__ or "")
    tool = Tool.from_function(function, description=description, annotations=annotations, structured_output=True)
    given = tool.fn_metadata.arg_model
    strict = create_model(given.__name__, __base__=given, __cls_kwargs__={"extra": "forbid"})
    tool.fn_metadata.arg_model = strict
    tool.parameters = strict.model_json_schema(by_alias=True)
    return tool


def _end(desk: Desk, code: int) -> None:
    """End the process and all that it started. A judgement under way stores nothing: its kernel can be told again."""
    desk.close(wait_s=END_S)
    with contextlib.suppress(psutil.NoSuchProcess):
        for child in psutil.Process().children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()
    sys.stderr.flush()
    os._exit(code)
