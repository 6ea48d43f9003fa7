"""The protocol's lines on stdin and stdout: the SDK's transport, and answers to requests that it cannot read.

The SDK drops a line that it cannot decode, and whoever sent it waits until its own time is up. The commonest such line
is a request with half of a surrogate pair in a string: JSON can write that, and no text can hold it.
"""

from __future__ import annotations

import contextvars
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from types import TracebackType
from typing import Any, Self

import anyio
from mcp.server.stdio import stdio_server
from mcp.shared._stream_protocols import ReadStream, WriteStream
from mcp.shared.message import SessionMessage
from mcp.types import INVALID_PARAMS, INVALID_REQUEST, ErrorData, JSONRPCError
from pydantic import ValidationError


@asynccontextmanager
async def answering_stdio() -> AsyncIterator[tuple[Answering, WriteStream[SessionMessage]]]:
    """`stdio_server` of the SDK, whose requests that cannot be read are answered with an error."""
    async with stdio_server() as (lines, answers):
        yield Answering(lines, answers), answers


class Answering:
    """A stream of messages, as the SDK reads it."""

    def __init__(self, lines: ReadStream[SessionMessage | Exception], answers: WriteStream[SessionMessage]) -> None:
        self._lines, self._answers = lines, answers

    @property
    def last_context(self) -> contextvars.Context | None:
        """What the SDK looks for beside a message."""
        return getattr(self._lines, "last_context", None)

    async def receive(self) -> SessionMessage | Exception:
        while True:
            item = await self._lines.receive()
            answer = refusal(item) if isinstance(item, Exception) else None
            if answer is None:
                return item
            with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
                await self._answers.send(SessionMessage(answer))

    async def aclose(self) -> None:
        await self._lines.aclose()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> SessionMessage | Exception:
        try:
            return await self.receive()
        except anyio.EndOfStream:
            raise StopAsyncIteration from None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc_val: BaseException | None,
        exc_tb: TracebackType | None,
    ) -> None:
        await self.aclose()


def refusal(problem: Exception) -> JSONRPCError | None:
    """The answer to a line that the SDK could not read; None if nobody waits for one, or it is not known who."""
    if not isinstance(problem, ValidationError):
        return None
    message = _message(problem)
    if message is None or message.keys() & {"result", "error"}:
        return None
    number = message.get("id")
    if isinstance(number, bool) or not isinstance(number, int | str) or number != legible(number):
        return None
    where = _half(message)
    if where:
        error = ErrorData(
            code=INVALID_PARAMS,
            message=f"{where} is no text: it holds half of a surrogate pair\nhint: send the character, or both halves",
        )
    else:
        # Without what was sent: it may be long.
        said = problem.errors(include_url=False, include_input=False, include_context=False)[0]
        at = ".".join(str(step) for step in said["loc"][1:])
        error = ErrorData(code=INVALID_REQUEST, message=f"the request cannot be read: {at and at + ': '}{said['msg']}")
    return JSONRPCError(jsonrpc="2.0", id=number, error=error)


def _message(problem: ValidationError) -> Mapping[str, Any] | None:
    """The object of the line, if it is one."""
    for error in problem.errors(include_url=False, include_context=False):
        found = error["input"]
        if error["type"] == "json_invalid":
            try:
                found = json.loads(found)
            except (ValueError, RecursionError):
                return None
            return found if isinstance(found, dict) else None
        # No message is of all kinds: of some kind the whole object lacks something.
        if error["type"] == "missing" and len(error["loc"]) == 2 and isinstance(found, dict):
            return found
    return None


def _half(message: Mapping[str, Any]) -> str:
    """Where a message holds half of a surrogate pair, or ""."""
    left: list[tuple[str, Any]] = [("", message)]
    while left:
        where, value = left.pop()
        if isinstance(value, str) and value != legible(value):
            return where
        if isinstance(value, dict):
            if any(key != legible(key) for key in value):
                return where or "the request"
            left += [(f"{where}.{key}".lstrip("."), held) for key, held in value.items()]
        elif isinstance(value, list):
            left += [(f"{where}[{number}]", held) for number, held in enumerate(value)]
    return ""


def legible(value: Any) -> Any:
    """A value of JSON whose texts can be sent: half of a surrogate pair, as of a file's name, becomes its escape."""
    if isinstance(value, str):
        return value.encode(errors="backslashreplace").decode()
    if isinstance(value, dict):
        return {legible(key): legible(held) for key, held in value.items()}
    return [legible(held) for held in value] if isinstance(value, list) else value
