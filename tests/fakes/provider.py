"""A provider of language models on 127.0.0.1: what a client sends is recorded, what it gets is scripted.

It speaks the protocols of OpenAI (Chat Completions), Anthropic (Messages) and Google (generateContent), each of them
streamed or not, as the request asks. A client meets real sockets and real HTTP; nothing of it is replaced.

    with FakeProvider([rate_limited(after="1"), reply("```cpp ...```")]) as server:
        path.write_text(server.toml(protocol="openai"))
        ...
        assert server.requests[1].body["model"] == "fake"

A script is a list of steps, one per request, or a function from the request to its step.
"""

from __future__ import annotations

import json
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Literal, Self, TypeAlias

from tests.fakes import wire_formats
from tests.fakes.wire_formats import Finish, Protocol

from kernelforge.generate.llm.types import TokenUsage


@dataclass(frozen=True, kw_only=True)
class Reply:
    """A reply of a model.

    Attributes:
        usage: None says nothing of tokens. delay_s: before the first byte.
        cut: "abrupt" loses the connection halfway; "orderly" ends it halfway as if that were all.
    """

    text: str
    usage: TokenUsage | None = None
    finish: Finish = "stop"
    delay_s: float = 0.0
    cut: Literal["", "abrupt", "orderly"] = ""


@dataclass(frozen=True, kw_only=True)
class Refused:
    """An HTTP error in the protocol's own form. "{key}" in message and headers becomes the key that was sent."""

    status: int
    message: str
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Raw:
    """Bytes that are sent as they are. "{key}" is replaced here, too."""

    body: bytes
    content_type: str = "application/json"
    status: int = 200


@dataclass(frozen=True, kw_only=True)
class Hang:
    """Nothing is sent until the server stops."""


@dataclass(frozen=True, kw_only=True)
class Reset:
    """The connection is reset before the first byte."""


Step: TypeAlias = Reply | Refused | Raw | Hang | Reset


@dataclass(frozen=True, kw_only=True)
class SeenRequest:
    """A request as it arrived. headers: names in lower case. started, s: on `time.monotonic`'s clock."""

    number: int
    protocol: Protocol
    path: str
    headers: Mapping[str, str]
    raw: bytes
    started: float

    @property
    def body(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.raw)
        return found

    @property
    def key(self) -> str:
        """What was sent as the key, "" if none."""
        bearer = self.headers.get("authorization", "").removeprefix("Bearer ")
        return self.headers.get("x-api-key") or self.headers.get("x-goog-api-key") or bearer

    @property
    def text(self) -> str:
        """All text of system and messages, in order, one part a line."""
        return "\n".join(_texts(self.body))


Script: TypeAlias = Sequence[Step] | Callable[[SeenRequest], Step]


def reply(text: str, usage: TokenUsage | None = None, *, finish: Finish = "stop", delay_s: float = 0.0) -> Reply:
    return Reply(text=text, usage=usage, finish=finish, delay_s=delay_s)


def empty() -> Reply:
    return Reply(text="", usage=TokenUsage(input_tokens=10, output_tokens=1))


def cut(how: Literal["abrupt", "orderly"] = "abrupt") -> Reply:
    return Reply(text="half of a reply " * 1000, usage=TokenUsage(input_tokens=10, output_tokens=9), cut=how)


def rate_limited(after: str = "", message: str = "too many requests") -> Refused:
    """after: the header Retry-After, in seconds or as a date."""
    return Refused(status=429, message=message, headers={"retry-after": after} if after else {})


def server_error(status: int = 500) -> Refused:
    return Refused(status=status, message="something went wrong here")


def rejected(status: int = 400, message: str = "this request cannot be served") -> Refused:
    return Refused(status=status, message=message)


def key_echo(status: int) -> Refused:
    """An error that repeats the key wherever it can."""
    return Refused(status=status, message="bad key {key} in 'x-api-key': '{key}'", headers={"x-echo": "{key}"})


def malformed() -> Raw:
    return Raw(body=b'{"choices": [{"mess')


def html() -> Raw:
    return Raw(body=b"<html><body><h1>Welcome to the hotel's network</h1></body></html>", content_type="text/html")


def hang() -> Hang:
    return Hang()


def reset() -> Reset:
    return Reset()


class FakeProvider:
    """The server, running within `with`. After the last step of a list every request is rejected with a 400.

    Attributes:
        requests: all that arrived, in order. most_in_flight: the largest number that was answered at one time.
    """

    def __init__(self, script: Script) -> None:
        self._script = script
        self._lock = threading.Lock()
        self._in_flight = 0
        self.requests: list[SeenRequest] = []
        self.most_in_flight = 0
        self.stopping = threading.Event()
        self._server = _Server(self)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), name="fake-provider")

    @property
    def base_url(self) -> str:
        """Of all protocols."""
        return f"http://127.0.0.1:{self._server.server_port}"

    def toml(
        self, *, protocol: Protocol = "openai", name: str = "fake", api_key_env: str = "", **options: object
    ) -> str:
        """A configuration file in which this server is provider `name`; options: further fields of its table."""
        fields = {"protocol": protocol, "base_url": self.base_url, "api_key_env": api_key_env, **options}
        lines = [f"{key} = {json.dumps(value)}" for key, value in fields.items()]
        return "\n".join([f"[llm.providers.{name}]", *lines, ""])

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stopping.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    @contextmanager
    def answering(self, protocol: Protocol, path: str, headers: Mapping[str, str], raw: bytes) -> Iterator[_Answer]:
        """Record a request, and say what it gets."""
        with self._lock:
            seen = SeenRequest(
                number=len(self.requests),
                protocol=protocol,
                path=path,
                headers={name.lower(): value for name, value in headers.items()},
                raw=raw,
                started=time.monotonic(),
            )
            self.requests.append(seen)
            self._in_flight += 1
            self.most_in_flight = max(self.most_in_flight, self._in_flight)
        try:
            yield _Answer(seen, self._step(seen))
        finally:
            with self._lock:
                self._in_flight -= 1

    def _step(self, seen: SeenRequest) -> Step:
        if callable(self._script):
            return self._script(seen)
        if seen.number < len(self._script):
            return self._script[seen.number]
        return rejected(message=f"the script has {len(self._script)} steps, and this is request {seen.number + 1}")


@dataclass(frozen=True)
class _Answer:
    seen: SeenRequest
    step: Step


class _Server(ThreadingHTTPServer):
    # Fifty clients may connect at once.
    request_queue_size = 128

    def __init__(self, provider: FakeProvider) -> None:
        self.provider = provider
        super().__init__(("127.0.0.1", 0), _Handler)

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that went away is part of the game."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def log_message(self, format: str, *args: object) -> None:
        """Nothing: tests look at `requests`."""

    def do_POST(self) -> None:
        raw = self.rfile.read(int(self.headers.get("content-length") or 0))
        # A client closes its connections anyway; so none is left open when the server stops.
        self.close_connection = True
        protocol = _protocol_of(self.path)
        if protocol is None:
            self._send(404, b"no such path", "text/plain")
            return
        with self.server.provider.answering(protocol, self.path, dict(self.headers.items()), raw) as answer:
            self._answer(answer.seen, answer.step)

    def _answer(self, seen: SeenRequest, step: Step) -> None:
        match step:
            case Reply():
                self.server.provider.stopping.wait(step.delay_s) if step.delay_s else None
                self._reply(seen, step)
            case Refused():
                body = wire_formats.error_body(seen.protocol, step.status, _echo(step.message, seen))
                headers = {name: _echo(value, seen) for name, value in step.headers.items()}
                self._send(step.status, json.dumps(body).encode(), "application/json", headers)
            case Raw():
                self._send(step.status, step.body.replace(b"{key}", seen.key.encode()), step.content_type)
            case Hang():
                self.server.provider.stopping.wait()
            case Reset():
                # Closing with a linger of no time sends a reset instead of the usual farewell.
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                self.connection.close()

    def _reply(self, seen: SeenRequest, step: Reply) -> None:
        fields: dict[str, Any] = {
            **{"text": _echo(step.text, seen), "finish": step.finish, "usage": step.usage},
            **{"model": _model_of(seen), "number": seen.number},
        }
        if not _wants_stream(seen):
            body = json.dumps(wire_formats.whole(seen.protocol, **fields)).encode()
            self._send(200, body, "application/json", part=len(body) // 2 if step.cut else None)
            return
        pieces = list(wire_formats.events(seen.protocol, **fields))
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("connection", "close")
        if step.cut != "orderly":
            self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        for piece in pieces[: len(pieces) // 2] if step.cut else pieces:
            self.wfile.write(piece if step.cut == "orderly" else b"%x\r\n%s\r\n" % (len(piece), piece))
        if not step.cut:
            self.wfile.write(b"0\r\n\r\n")

    def _send(
        self,
        status: int,
        body: bytes,
        content_type: str,
        headers: Mapping[str, str] | None = None,
        *,
        part: int | None = None,
    ) -> None:
        """part: how many bytes are really sent; all by default."""
        self.send_response(status)
        everything = {"content-type": content_type, "content-length": str(len(body)), "connection": "close"}
        for name, value in {**everything, **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body[:part])


def _protocol_of(path: str) -> Protocol | None:
    plain = path.partition("?")[0]
    if plain.endswith("/messages"):
        return "anthropic"
    if plain.endswith("/chat/completions"):
        return "openai"
    return "google" if plain.endswith((":generateContent", ":streamGenerateContent")) else None


def _wants_stream(seen: SeenRequest) -> bool:
    return ":streamGenerateContent" in seen.path or bool(seen.body.get("stream"))


def _model_of(seen: SeenRequest) -> str:
    if seen.protocol == "google":
        return seen.path.rpartition("/")[2].partition(":")[0]
    return str(seen.body["model"])


def _echo(text: str, seen: SeenRequest) -> str:
    return text.replace("{key}", seen.key)


def _texts(value: object) -> Iterator[str]:
    """All text in the order of a request's body, whatever its protocol."""
    if isinstance(value, list):
        for item in value:
            yield from _texts(item)
    elif isinstance(value, dict):
        for name in ("system", "systemInstruction", "messages", "contents", "content", "parts", "text"):
            inner = value.get(name)
            if isinstance(inner, str):
                yield inner
            else:
                yield from _texts(inner)
