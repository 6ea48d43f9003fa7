"""`kforge mcp`: tools for coding agents over the Model Context Protocol."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kernelforge.cli.output import Output
from kernelforge.cli.verb import verb
from kernelforge.errors import EnvironmentMissing


@verb
def mcp(
    out: Output,
    project: Annotated[
        Path | None,
        typer.Option(
            "--project", "-p", metavar="PROJECT", help="What tools mean that name no project. It need not exist yet."
        ),
    ] = None,
) -> None:
    """Serve coding agents over MCP, on stdin and stdout.

    Started by a client, such as an editor or a coding agent, and not by hand: see docs/mcp.md. Ends when the client
    closes stdin.
    """
    try:
        from kernelforge.mcp.serving import serve
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in {"mcp", "mcp_types", "pydantic", "anyio"}:
            raise
        raise EnvironmentMissing(
            "the MCP server needs the package mcp", hint="pip install 'kernelforge[mcp]'"
        ) from error
    if not out.quiet:
        out.note("serving MCP on stdin and stdout; closing stdin ends it")
    serve(project)
