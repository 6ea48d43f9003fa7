"""A project of one variant, and clients: of a server in this process, and of one over stdio."""

from __future__ import annotations

import os
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeAlias

import anyio
import pytest
import torch
from mcp import Client, StdioServerParameters
from mcp.types import CallToolResult, TextContent
from tests.cli.conftest import kforge  # noqa: F401 - a fixture
from tests.cli.test_judgement import relu_record

from kernelforge.cards.examples import ExampleStore
from kernelforge.cards.types import OperatorCard
from kernelforge.mcp.desk import Desk
from kernelforge.mcp.serving import make_server
from kernelforge.store.project import Project

Script: TypeAlias = Callable[[Client], Awaitable[Any]]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project of one variant of relu, without trials."""
    examples = ExampleStore(tmp_path / "examples")
    record = relu_record(examples.put([torch.linspace(-2, 2, 4000).reshape(4, 1000)]))
    card = OperatorCard(operator="relu", model="tiny", device="cpu", variants=(record,))
    path = tmp_path / "tiny.kforge"
    Project.create(path, model="tiny", device="cpu", cards=(card,), capture_info={}, examples=examples.root)
    return path


@pytest.fixture
def here(project: Path) -> Callable[[Script], Any]:
    """Runs a script as a client of a server in this process that knows the project."""

    def run(script: Script) -> Any:
        async def main() -> Any:
            async with Client(make_server(Desk(project=project))) as client:
                return await script(client)

        return anyio.run(main)

    return run


def over_stdio(script: Script, *arguments: str, folder: Path) -> Any:
    """Run a script as a client of `kforge mcp ARGUMENTS` in a folder."""

    async def main() -> Any:
        async with Client(server_in(folder, *arguments)) as client:
            return await script(client)

    return anyio.run(main)


def server_in(folder: Path, *arguments: str) -> StdioServerParameters:
    command = ["-m", "kernelforge", "mcp", "--quiet", *arguments]
    return StdioServerParameters(command=sys.executable, args=command, env=environment(), cwd=folder)


def environment() -> dict[str, str]:
    """One thread: what is compared with eager must not depend on how busy the other cores are."""
    ours = {name: value for name, value in os.environ.items() if name.startswith("KFORGE_")}
    needed = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    return {**needed, **ours, "OMP_NUM_THREADS": "1"}


def text_of(result: CallToolResult) -> str:
    (content,) = result.content
    assert isinstance(content, TextContent)
    return content.text


def data_of(result: CallToolResult) -> dict[str, Any]:
    assert not result.is_error, text_of(result)
    data: dict[str, Any] = result.structured_content
    return data
