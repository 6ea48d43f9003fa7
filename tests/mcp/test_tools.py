"""What the tools look like to a client, and what they say of requests that are off. In one process, without a judge."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp import Client
from mcp.types import Tool
from tests.mcp.conftest import Script, data_of, text_of

from kernelforge.errors import NotFound
from kernelforge.mcp import desk as desk_module
from kernelforge.mcp.desk import Desk, words
from kernelforge.mcp.serving import make_server
from kernelforge.mcp.tools import exporting
from kernelforge.store.project import Project

DOCUMENT = Path(__file__).parents[2] / "docs" / "mcp.md"
ARGUMENTS = {
    "capture": (
        "model", ["project", "device", "dtype", "samples", "random_weights", "shapes", "overwrite"],
    ),
    "list_operators": ("", ["project"]),
    "next_order": ("", ["project", "operators", "parent"]),
    "get_context": ("", ["project", "order", "variant"]),
    "submit_candidate": ("order source", ["project", "notes", "model"]),
    "get_result": ("", ["project", "order", "variant", "trial"]),
    "tree": ("variant", ["project"]),
    "status": ("", ["project"]),
    "export": ("", ["project", "output", "allow_unchecked"]),
}  # fmt: skip
RESULTS = {
    "capture": {"project", "model", "device", "variants", "calls", "coverage_wall", "unsupported", "warnings"},
    "list_operators": {"operators"},
    "next_order": {"order", "parked"},
    "get_context": {
        "order", "state", "variant", "label", "model", "backend", "reason", "write", "prompt", "prelude", "parent",
        "history", "asked", "expires",
    },
    "submit_candidate": {
        "order", "state", "label", "variant", "title", "diagnosis", "judged", "why", "source", "notes", "model",
    },
    "get_result": {
        "order", "state", "label", "variant", "title", "diagnosis", "judged", "why", "source", "notes", "model",
    },
    "tree": {"variant", "label", "nodes"},
    "status": {"project", "model", "device", "trials", "rows", "orders"},
    "export": {"path", "entries", "held", "size_bytes", "used", "skipped"},
}  # fmt: skip


@pytest.fixture(scope="module")
def tools() -> dict[str, Tool]:
    async def listed() -> list[Tool]:
        async with Client(make_server(Desk())) as client:
            return (await client.list_tools()).tools

    return {tool.name: tool for tool in anyio.run(listed)}


def test_the_tools_and_their_schemas(tools: dict[str, Tool]) -> None:
    assert list(tools) == list(ARGUMENTS)
    for name, tool in tools.items():
        required, optional = ARGUMENTS[name]
        assert tool.input_schema.get("required", []) == required.split()
        assert sorted(tool.input_schema["properties"]) == sorted([*required.split(), *optional])
        assert tool.input_schema["additionalProperties"] is False
        for argument in tool.input_schema["properties"].values():
            assert argument["description"].endswith(".")
        assert tool.output_schema is not None and set(tool.output_schema["properties"]) == RESULTS[name]
        assert tool.description and len(tool.description) > 60 and "Raises:" not in tool.description
        assert tool.annotations is not None and tool.annotations.read_only_hint is not None


def test_a_trial_may_be_named_by_its_number(tools: dict[str, Tool]) -> None:
    for tool, argument in (("get_result", "trial"), ("next_order", "parent")):
        kinds = tools[tool].input_schema["properties"][argument]["anyOf"]
        assert [kind["type"] for kind in kinds] == ["string", "integer"]


def test_the_document_lists_every_tool_in_its_own_words(tools: dict[str, Tool]) -> None:
    rows = [line for line in DOCUMENT.read_text().splitlines() if line.startswith("| `")]
    wanted = []
    for name, tool in tools.items():
        required, optional = ARGUMENTS[name]
        arguments = ", ".join([*(f"**`{r}`**" for r in required.split()), *(f"`{o}`" for o in optional)])
        first = " ".join((tool.description or "").partition("\n\n")[0].split())
        wanted.append(f"| `{name}` | {first} | {arguments} |")
    assert rows == wanted


def test_the_document_s_configuration_is_json() -> None:
    (snippet,) = re.findall(r"```json\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    assert json.loads(snippet)["mcpServers"]["kernelforge"] == {"command": "kforge", "args": ["mcp"]}


def calls(*steps: tuple[str, dict[str, Any]]) -> Script:
    async def script(client: Client) -> list[str]:
        results = [await client.call_tool(name, arguments) for name, arguments in steps]
        assert all(result.is_error for result in results), [text_of(r) for r in results]
        return [text_of(result) for result in results]

    return script


def test_an_error_says_what_happened_and_what_to_do(here: Callable[[Script], Any]) -> None:
    no_project, no_variant, no_order, neither, both = here(calls(
        ("status", {"project": "nowhere.kforge"}), ("tree", {"variant": "gelu"}),
        ("submit_candidate", {"order": "f00", "source": "x"}), ("get_context", {}),
        ("get_result", {"order": "f00", "variant": "relu", "trial": "1"}),
    ))  # fmt: skip
    assert "no project at nowhere.kforge\nhint: " in no_project
    assert "no variant is called 'gelu'\nhint: variants: relu-" in no_variant
    assert "no order starts with 'f00'\nhint: " in no_order
    assert "name either an order or a variant" in neither and "name either an order" in both
    assert not any("Traceback" in said or "File " in said for said in (no_project, no_variant, no_order, neither, both))


def test_arguments_that_are_off_are_named(here: Callable[[Script], Any]) -> None:
    missing, unknown, wrong = here(calls(
        ("submit_candidate", {"source": "x"}), ("status", {"projct": "x"}), ("capture", {"model": "m", "samples": 0}),
    ))  # fmt: skip
    assert "order\n  Field required" in missing
    assert "projct\n  Extra inputs are not permitted" in unknown
    assert "samples\n  Input should be greater than or equal to 1" in wrong


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("q\0.kforge", "holds a NUL character"), ("x" * 300_000, "is longer than 4096 bytes"),
        ("\ud800", "is no text: surrogates not allowed at character 0"),
    ],
    ids=["nul", "long", "half a surrogate pair"],
)  # fmt: skip
def test_what_no_process_can_be_given_is_refused_with_a_reason(
    here: Callable[[Script], Any], name: str, said: str
) -> None:
    told = here(calls(
        ("capture", {"model": "m.py", "project": name}), ("capture", {"model": name, "project": "q.kforge"}),
        ("export", {"project": name}), ("export", {"output": name}),
    ))  # fmt: skip
    assert all(said in text and "\nhint: " in text and len(text) < 300 for text in told), told


def test_a_folder_without_a_name_of_its_own_is_exported_beside_itself(
    here: Callable[[Script], Any], project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[list[str]] = []

    def run_command(arguments: list[str], **_: object) -> None:
        ran.append(arguments)
        raise NotFound("no project here")

    monkeypatch.setattr(exporting, "run_command", run_command)
    monkeypatch.chdir(project)
    here(calls(("export", {"project": "."}), ("export", {"project": "/"}), ("export", {"project": str(project)})))
    beside = str(tmp_path / "tiny.cast")
    assert [arguments[arguments.index("--output") + 1] for arguments in ran] == [beside, "/.cast", beside]


def test_a_server_without_a_project_asks_for_one() -> None:
    async def ask() -> str:
        async with Client(make_server(Desk())) as client:
            return text_of(await client.call_tool("status", {}))

    assert "which project?\nhint: give `project`" in anyio.run(ask)


@pytest.mark.parametrize(
    ("source", "said"),
    [
        (" \n", "the source is empty"), ("x" * (2 << 20), "the source is larger than 1 MiB"),
        ("int\0x", "the source is no text"), ("int \ud800", "the source is no text: surrogates not allowed"),
    ],
    ids=["empty", "2 MB", "nul", "half a surrogate pair"],
)  # fmt: skip
def test_what_is_no_source_is_refused_and_the_order_stays(
    here: Callable[[Script], Any], source: str, said: str
) -> None:
    async def script(client: Client) -> tuple[str, str]:
        order = data_of(await client.call_tool("next_order", {}))["order"]["order"]
        refused = await client.call_tool("submit_candidate", {"order": order, "source": source})
        assert refused.is_error
        return text_of(refused), data_of(await client.call_tool("get_result", {"order": order}))["why"]

    refused, why = here(script)
    assert said in refused and why == "nothing was submitted yet"


def test_an_order_tells_all_that_its_author_must_know(here: Callable[[Script], Any], project: Path) -> None:
    async def script(client: Client) -> tuple[Any, ...]:
        taken = await client.call_tool("next_order", {"operators": ["relu"]})
        order = data_of(taken)["order"]
        again = data_of(await client.call_tool("get_context", {"order": order["order"][:8]}))
        looked = data_of(await client.call_tool("get_context", {"variant": "relu"}))
        status = data_of(await client.call_tool("status", {}))
        return text_of(taken), order, again, looked, status

    text, order, again, looked, status = here(script)
    assert order["order"] in text and order["prompt"] in text
    assert order["prelude"].strip() in order["prompt"] and "submit_candidate" in order["prompt"]
    assert (order["write"], order["parent"], order["state"]) == ("kernel.cpp", None, "asked")
    assert again == order
    assert (looked["order"], looked["state"], looked["variant"]) == ("", "", order["variant"])
    assert "submit_candidate" not in looked["prompt"]
    assert [(o["order"], o["state"]) for o in status["orders"]] == [(order["order"], "asked")]
    assert [o.id for o in Project.open(project).orders()] == [order["order"]]


def test_a_fault_of_ours_is_no_traceback_for_the_client(
    here: Callable[[Script], Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("of nobody's business")

    monkeypatch.setattr(desk_module, "_run", broken)
    (said,) = here(calls(("status", {})))
    assert said == "Error executing tool status"
    assert "nobody's business" in caplog.text


def test_hints_of_the_command_line_become_arguments() -> None:
    assert words(NotFound("gone", hint="use --allow-unchecked")) == "gone\nhint: use allow_unchecked"
    assert words(NotFound("gone", hint="kforge ops --all")) == "gone\nhint: kforge ops --all"
    assert words(NotFound("gone")) == "gone"


def test_without_the_extra_the_command_says_what_to_install(kforge: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in [m for m in sys.modules if m.partition(".")[0] == "mcp" or m.startswith("kernelforge.mcp")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "mcp", None)
    ran = kforge("mcp")
    assert ran.code == 6
    assert "hint: pip install 'kernelforge[mcp]'" in ran.stderr and ran.stdout == ""
