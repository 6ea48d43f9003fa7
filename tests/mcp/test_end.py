"""How a server ends, and what it withstands: raw lines on its standard input, signals, clients that leave."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio
import psutil
import pytest
from mcp import Client
from tests.mcp.conftest import data_of, environment, over_stdio, text_of

from kernelforge.store.project import Project

pytestmark = pytest.mark.slow

SPIN = """extern "C" int launch(const float* input, float* out, void*) {
  for (volatile int64_t i = 0; i < 400000000; ++i);
  for (int64_t i = 0; i < 4000; ++i) out[i] = input[i] < 0 ? 0.0f : input[i];
  return 0;
}
"""
"""Right, and so slow that judging it takes many seconds."""


class Raw:
    """A client that writes lines."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process

    def send(self, **message: Any) -> None:
        self.write(json.dumps({"jsonrpc": "2.0", **message}))

    def write(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def answer(self, number: int) -> dict[str, Any]:
        while True:
            message: dict[str, Any] = json.loads(self.line())
            if message.get("id") == number:
                return message

    def call(self, number: int, tool: str, **arguments: Any) -> None:
        self.send(id=number, method="tools/call", params={"name": tool, "arguments": arguments})


@contextmanager
def raw(project: Path) -> Iterator[Raw]:
    with subprocess.Popen(
        [sys.executable, "-m", "kernelforge", "mcp", "--project", str(project)], stdin=subprocess.PIPE,
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, errors="surrogateescape",
        env=environment(),
    ) as process:  # fmt: skip
        try:
            client = Raw(process)
            hello = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "raw", "version": "1"}}
            client.send(id=0, method="initialize", params=hello)
            assert client.answer(0)["result"]["serverInfo"]["name"] == "kernelforge"
            client.send(method="notifications/initialized")
            yield client
        finally:
            process.kill()


def judging(client: Raw, project: Path) -> list[psutil.Process]:
    """Let the server judge a kernel that takes long; the processes that it started."""
    client.call(1, "next_order")
    order = client.answer(1)["result"]["structuredContent"]["order"]["order"]
    client.call(2, "submit_candidate", order=order, source=SPIN)
    wait_for(lambda: Project.open(project).order(order).state == "judging")
    wait_for(lambda: bool(children(client)))
    return children(client)


def children(client: Raw) -> list[psutil.Process]:
    return psutil.Process(client.process.pid).children(recursive=True)


def wait_for(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def lives(process: psutil.Process) -> bool:
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE


@pytest.mark.parametrize("how", ["closed stdin", "SIGTERM"])
def test_a_server_that_judges_ends_with_its_client(project: Path, how: str) -> None:
    with raw(project) as client:
        below = judging(client, project)
        assert client.process.stdin is not None
        if how == "SIGTERM":
            client.process.send_signal(signal.SIGTERM)
        else:
            client.process.stdin.close()
        assert client.process.wait(10) == (128 + signal.SIGTERM if how == "SIGTERM" else 0)
        wait_for(lambda: not any(map(lives, below)), 5)
    opened = Project.open(project)
    # Nothing is said of a kernel whose judge was killed, and it is nobody's fault.
    assert opened.nodes(opened.record("relu").variant.id) == ()


def test_a_server_without_work_ends_at_once(project: Path) -> None:
    with raw(project) as client:
        assert client.process.stdin is not None
        client.process.stdin.close()
        started = time.monotonic()
        assert client.process.wait(10) == 0 and time.monotonic() - started < 2


def test_lines_that_are_no_requests_are_withstood(project: Path) -> None:
    with raw(project) as client:
        for line in ("{", "[]", "null", "[" * 50_000, '{"jsonrpc": "2.0", "id": "\\ud800", "method": "ping"}'):
            client.write(line)
        client.write("\udcff")  # the byte 0xff
        client.write('{"jsonrpc": "2.0", "id": 5, "result": "\\ud800"}')  # an answer that nobody asked for
        client.send(id=6, method="tools/call", params={"name": "none", "arguments": {}})
        # Nothing was said to the others: nobody waits for an answer to them, or nobody knows who.
        first: dict[str, Any] = json.loads(client.line())
        assert first["id"] == 6 and first["result"]["isError"]
        client.call(7, "status")
        assert client.answer(7)["result"]["structuredContent"]["model"] == "tiny"


def test_a_request_that_cannot_be_read_is_answered(project: Path) -> None:
    """Its client would wait, for the SDK drops what it cannot decode."""
    half = {"source": "launch( \ud800", "order": "x"}
    with raw(project) as client:
        client.call(5, "submit_candidate", **half)
        client.call(6, "status", project="\ud800")
        client.call(7, "next_order", operators=["relu", "\udfff"])
        client.send(id="eight", method="tools/call", params={"name": "tree", "arguments": {"\ud800": 1}})
        client.send(id=9, method="tools/call", params=3)
        client.send(id=10)
        client.write('{"jsonrpc": "2.0", "id": 11, "method": "ping", "params": ' + "[" * 300 + "]" * 300 + "}")
        client.send(id=12, method="tools/call", params={"name": "status", "arguments": {"project": "\U0001f600"}})
        told = {answer["id"]: answer for answer in (json.loads(client.line()) for _ in range(8))}
    assert {number: answer["error"]["code"] for number, answer in told.items() if number != 12} == {
        5: -32602, 6: -32602, 7: -32602, "eight": -32602, 9: -32600, 10: -32600, 11: -32600,
    }  # fmt: skip
    said = {number: answer["error"]["message"] for number, answer in told.items() if number != 12}
    assert said[5].startswith("params.arguments.source is no text: it holds half of a surrogate pair\nhint: ")
    assert said[6].startswith("params.arguments.project is no text")
    assert said[7].startswith("params.arguments.operators[1] is no text")
    assert said["eight"].startswith("params.arguments is no text")
    assert said[9] == "the request cannot be read: params: Input should be an object"
    assert "recursion limit" in said[11] and "[[" not in said[11]
    assert "no project at \U0001f600" in told[12]["result"]["content"][0]["text"], "a whole pair is a character"


def test_a_name_that_is_no_text_is_told_as_it_can_be(tmp_path: Path) -> None:
    """A file's name may be bytes of no encoding, and an answer with it could not be written."""
    with raw(tmp_path / "\udcff.kforge") as client:
        client.call(5, "status")
        assert "no project at" in (said := client.answer(5)["result"]["content"][0]["text"])
        assert "\\udcff.kforge" in said
        client.call(6, "tree", variant="relu", project="none.kforge")
        assert "no project at none.kforge" in client.answer(6)["result"]["content"][0]["text"], "it goes on"


def test_a_cancelled_further_attempt_is_judged_when_it_is_submitted_again(project: Path) -> None:
    wrong = SPIN.replace("0.0f", "0.25f")

    async def script(client: Client) -> None:
        order = data_of(await client.call_tool("next_order", {}))["order"]["order"]
        arguments = {"order": order, "source": "int helper() { return 0; }\n"}
        assert data_of(await client.call_tool("submit_candidate", arguments))["judged"]["outcome"] == "build_failure"
        arguments["source"] = wrong
        async with anyio.create_task_group() as group:

            async def note(progress: float, total: float | None, message: str | None) -> None:
                if message == "verifying":
                    group.cancel_scope.cancel()

            async def submit() -> None:
                await client.call_tool("submit_candidate", arguments, progress_callback=note)

            group.start_soon(submit)
        again = data_of(await client.call_tool("submit_candidate", {**arguments, "source": "// again\n" + wrong}))
        assert (again["judged"]["reason"], again["judged"]["number"]) == ("wrong_value", 2)
        assert again["order"] != order and data_of(await client.call_tool("status", {}))["orders"] == []

    over_stdio(script, "--project", str(project), folder=project.parent)


def test_two_at_once_are_judged_one_after_the_other_and_a_third_is_cancelled(project: Path) -> None:
    sources = [
        f'extern "C" int launch(const float* input, float* out, void*) {{\n'
        f"  for (int64_t i = 0; i < 4000; ++i) out[i] = input[i] < 0 ? {wrong}f : input[i];\n  return 0;\n}}\n"
        for wrong in ("0.25", "0.5")
    ]

    async def script(client: Client) -> None:
        taken = [data_of(await client.call_tool("next_order", {}))["order"]["order"] for _ in range(3)]
        verdicts: list[Any] = []
        said: list[str | None] = []

        async def note(progress: float, total: float | None, message: str | None) -> None:
            said.append(message)

        async def submit(order: str, source: str) -> None:
            arguments = {"order": order, "source": source}
            verdicts.append(await client.call_tool("submit_candidate", arguments, progress_callback=note))

        async with anyio.create_task_group() as group:
            for order, source in zip(taken, sources, strict=False):
                group.start_soon(submit, order, source)
        assert [data_of(v)["judged"]["reason"] for v in verdicts] == ["wrong_value"] * 2, [*map(text_of, verdicts)]
        assert said.count("verifying") == 2 and said.count("waiting for the device") == 1
        said.clear()
        async with anyio.create_task_group() as group:
            group.start_soon(submit, taken[2], SPIN)
            while "verifying" not in said:
                await anyio.sleep(0.05)
            group.cancel_scope.cancel()
        # The server goes on, and the order keeps its kernel for another time.
        state = ""
        while state != "delivered":
            state = data_of(await client.call_tool("get_result", {"order": taken[2]}))["state"]
            assert state in ("judging", "delivered")
            await anyio.sleep(0.1)

    over_stdio(script, "--project", str(project), folder=project.parent)
    opened = Project.open(project)
    assert len(opened.nodes(opened.record("relu").variant.id)) == 2
