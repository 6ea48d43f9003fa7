"""The client against a server that speaks the providers' protocols: replies, failures, limits, waiting, caching."""

from __future__ import annotations

import json
import socket
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import pytest
from tests.fakes import provider as fake
from tests.fakes.provider import FakeProvider, Step
from tests.fakes.wire_formats import Protocol, whole

from kernelforge.errors import EnvironmentMissing
from kernelforge.generate.llm.client import ModelClient, open_client
from kernelforge.generate.llm.config import configure
from kernelforge.generate.llm.limits import Limits
from kernelforge.generate.llm.types import ChatRequest, FailureKind, ProviderFailure, TokenUsage, Turn
from kernelforge.settings import Settings, load_settings

USAGE = TokenUsage(input_tokens=1000, cache_read_tokens=800, output_tokens=300, reasoning_tokens=250)
over_each_protocol = pytest.mark.parametrize(
    ("protocol", "stream"),
    [("anthropic", True), ("anthropic", False), ("openai", False), ("openai", True), ("google", False)],
)


def ask(text: str = "now", *, history: tuple[Turn, ...] = (), limit: int = 500) -> ChatRequest:
    turns = (*history, Turn(role="user", text=text))
    return ChatRequest(system="the rules", stable="the variant", turns=turns, max_output_tokens=limit)


class Waits:
    """A sleep that takes no time but notes how long it would have been, and the clock that it sets forward."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def __call__(self, seconds: float) -> None:
        self.seconds.append(seconds)

    def clock(self) -> float:
        return time.monotonic() + sum(self.seconds)


Make = Callable[..., ModelClient]


@pytest.fixture
def client_of(tmp_path: Path) -> Make:
    """A client of a fake server's model "org/m", which does not wait between attempts but notes how long it would."""

    def make(server: FakeProvider, protocol: Protocol = "openai", **options: object) -> ModelClient:
        waits = Waits()
        client = ModelClient(
            configure("fake/org/m", written(tmp_path, server, protocol, **{"timeout_s": 5.0, **options})),
            "some-key-1234",
            clock=waits.clock,
            sleep=waits,
            jitter=lambda: 1.0,
        )
        client.waits = waits  # type: ignore[attr-defined]
        return client

    return make


def written(folder: Path, server: FakeProvider, protocol: Protocol, **options: Any) -> Settings:
    path = folder / "kforge.toml"
    path.write_text(
        server.toml(protocol=protocol, **options)
        + '[llm.providers.fake.models."org/m"]\n'
        + "price = { input = 3, output = 15, cache_read = 0.3, cache_write = 3.75 }\n"
    )
    return load_settings({"KFORGE_LLM_CONFIG": str(path)})


def failure(client: ModelClient, request: ChatRequest | None = None) -> ProviderFailure:
    with pytest.raises(ProviderFailure) as caught:
        client.complete(request or ask())
    return caught.value


@over_each_protocol
def test_a_reply_with_all_that_is_known_of_it(client_of: Make, protocol: Protocol, stream: bool) -> None:
    with FakeProvider([fake.reply("```cpp\nint ä;\n```", USAGE)]) as server:
        done = client_of(server, protocol, stream=stream).complete(ask())
    assert (done.text, done.usage, done.finish_reason) == ("```cpp\nint ä;\n```", USAGE, "stop")
    # 200 * 3 + 800 * 0.3 + 300 * 15
    assert done.cost_usd == pytest.approx(0.00534, abs=1e-12)
    assert (done.attempts, done.model) == (1, "m" if protocol == "google" else "org/m")
    assert done.request_id.endswith("0")
    assert 0 < done.seconds < 5


@pytest.mark.parametrize("stream", [False, True])
def test_anthropics_input_is_counted_with_what_is_cached(client_of: Make, stream: bool) -> None:
    usage = TokenUsage(input_tokens=1000, cache_write_tokens=700, cache_read_tokens=200, output_tokens=50)
    with FakeProvider([fake.reply("x", usage)]) as server:
        done = client_of(server, "anthropic", stream=stream).complete(ask())
    assert done.usage == usage
    assert done.cost_usd == pytest.approx(0.003735, abs=1e-12)


@over_each_protocol
def test_replies_that_are_no_failures(client_of: Make, protocol: Protocol, stream: bool) -> None:
    big = "0123456789abcdef" * 131_072
    steps: list[Step] = [
        *[fake.empty(), fake.reply("no", finish="refusal"), fake.reply("half", finish="length"), fake.reply(big)],
        fake.reply("no count"),
    ]
    with FakeProvider(steps) as server:
        client = client_of(server, protocol, stream=stream)
        done = [client.complete(ask()) for _ in steps]
    assert [one.finish_reason for one in done] == ["stop", "refusal", "length", "stop", "stop"]
    assert (done[0].text, done[2].text, done[3].text == big) == ("", "half", True)
    assert (done[4].usage, done[4].cost_usd) == (None, None)


def whole_reply(protocol: Protocol, count: object) -> bytes:
    """With `count` wherever a number of tokens stands."""
    body = whole(protocol, text="fine", finish="stop", usage=USAGE, model="org/m", number=0)
    name = {"google": "usageMetadata"}.get(protocol, "usage")
    return json.dumps(
        {**body, name: {field: count for field, value in body[name].items() if type(value) is int}}
    ).encode()


@pytest.mark.parametrize("count", [-5, 1.5, "many", True, [3], 10**9 + 1, 10**30])
@pytest.mark.parametrize("protocol", ["anthropic", "openai", "google"])
def test_a_usage_that_cannot_be_is_unknown_and_the_reply_is_kept(
    client_of: Make, protocol: Protocol, count: object, recwarn: pytest.WarningsRecorder
) -> None:
    with FakeProvider([fake.Raw(body=whole_reply(protocol, count))]) as server:
        done = client_of(server, protocol, stream=False).complete(ask())
    assert (done.text, done.usage, done.cost_usd) == ("fine", None, None)
    assert [str(warning.message) for warning in recwarn] == []


@over_each_protocol
def test_half_a_character_does_not_get_further(client_of: Make, protocol: Protocol, stream: bool) -> None:
    with FakeProvider([fake.reply("a \ud800 b")]) as server:
        client = client_of(server, protocol, stream=stream)
        try:
            assert client.complete(ask()).text == "a ? b"
        except ProviderFailure as error:
            # Some packages do not get as far as a reply.
            assert error.kind == "malformed"


@over_each_protocol
def test_failures_that_are_not_tried_again(client_of: Make, protocol: Protocol, stream: bool) -> None:
    expected: list[tuple[Step, FailureKind, str]] = [
        (fake.rejected(401), "auth", "HTTP 401: this request cannot be served"),
        (fake.rejected(403), "auth", "HTTP 403"),
        (fake.rejected(400, "too long " * 100), "bad_request", "HTTP 400: too long"),
        (fake.rejected(404), "bad_request", "HTTP 404"),
        (fake.rejected(422), "bad_request", "HTTP 422"),
        (fake.malformed(), "malformed", ""),
        (fake.html(), "malformed", ""),
        (fake.Raw(body=b"{}"), "malformed", ""),
        (fake.Raw(body=b""), "malformed", ""),
        (fake.cut("abrupt"), "malformed", "peer closed connection"),
        (fake.cut("orderly"), "malformed", ""),
        (fake.hang(), "timeout", "0.5 s"),
    ]
    steps: list[Step] = [step for step, _, _ in expected]
    with FakeProvider(steps) as server:
        client = client_of(server, protocol, stream=stream, timeout_s=0.5)
        for step, kind, words in expected:
            error = failure(client)
            assert (error.kind, error.attempts) == (kind, 1), step
            assert words in error.detail
            assert 0 < len(error.detail) <= 300
            assert error.maybe_billed == (kind in {"malformed", "timeout"})
        assert len(server.requests) == len(expected)


@over_each_protocol
def test_failures_that_are_tried_again(client_of: Make, protocol: Protocol, stream: bool) -> None:
    steps: list[Step] = [
        fake.rate_limited(),
        fake.server_error(500),
        fake.server_error(503),
        fake.server_error(529),
        fake.reset(),
        fake.reply("at last"),
    ]
    with FakeProvider(steps) as server:
        client = client_of(server, protocol, stream=stream, max_retries=5)
        done = client.complete(ask())
        assert (done.text, done.attempts, len(server.requests)) == ("at last", 6, 6)
    assert waits_of(client) == [1, 2, 4, 8, 16]


def waits_of(client: ModelClient) -> list[float]:
    """Whole seconds, without the short ones of the limits."""
    found: Waits = client.waits  # type: ignore[attr-defined]
    return [round(seconds) for seconds in found.seconds if seconds >= 0.5]


@pytest.mark.parametrize(
    ("step", "kind"),
    [(fake.rate_limited(), "rate_limit"), (fake.server_error(), "server"), (fake.reset(), "connection")],
)
def test_tries_come_to_an_end(client_of: Make, step: Step, kind: str) -> None:
    with FakeProvider(lambda _: step) as server:
        error = failure(client_of(server, max_retries=2))
        assert (error.kind, error.attempts, len(server.requests)) == (kind, 3, 3)
        assert not error.maybe_billed


def test_where_nobody_listens(client_of: Make) -> None:
    with FakeProvider([]) as server:
        client = client_of(server, max_retries=1)
    error = failure(client)
    assert (error.kind, error.attempts) == ("connection", 2)


def test_a_server_that_takes_no_connection_is_not_waited_for_as_long_as_for_a_reply(
    client_of: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kernelforge.generate.llm.wire.CONNECT_TIMEOUT_S", 0.2)
    with socket.socket() as full, FakeProvider([]) as server:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        address = full.getsockname()
        # Its queue is full with these, so that a further connection gets no answer.
        waiting = [socket.socket() for _ in range(4)]
        for other in waiting:
            other.setblocking(False)
            other.connect_ex(address)
        client = client_of(server, max_retries=0)
        client.config = replace(client.config, base_url=f"http://127.0.0.1:{address[1]}")
        error = failure(client)
        for other in waiting:
            other.close()
    assert (error.kind, error.maybe_billed) == ("connection", False)
    assert error.seconds < 4


def test_the_pause_that_a_provider_asks_for_is_kept(client_of: Make) -> None:
    date = format_datetime(datetime.now(UTC) + timedelta(seconds=30), usegmt=True)
    steps: list[Step] = [fake.rate_limited("7"), fake.rate_limited(date), fake.rate_limited("0"), fake.reply("x")]
    with FakeProvider(steps) as server:
        client = client_of(server)
        client.complete(ask())
    first, second, third = waits_of(client)
    assert (first, third) == (7, 4)
    assert 25 <= second <= 30


def test_a_pause_is_kept_in_real_time_too(tmp_path: Path) -> None:
    with FakeProvider([fake.rate_limited("1"), fake.reply("x")]) as server:
        settings = written(tmp_path, server, "openai")
        ModelClient(configure("fake/org/m", settings), "", jitter=lambda: 0.0).complete(ask())
        first, second = server.requests
    assert second.started - first.started >= 1.0


def test_a_pause_of_an_hour_is_a_failure(client_of: Make) -> None:
    with FakeProvider([fake.rate_limited("3600")]) as server:
        error = failure(client_of(server))
    assert (error.kind, error.attempts) == ("rate_limit", 1)


def test_an_empty_account_is_not_waited_for(client_of: Make) -> None:
    body = b'{"error": {"message": "You exceeded your current quota", "code": "insufficient_quota"}}'
    with FakeProvider([fake.Raw(status=429, body=body)]) as server:
        error = failure(client_of(server))
    assert (error.kind, error.attempts) == ("rate_limit", 1)
    assert "quota" in error.detail


def test_an_error_within_a_stream_may_have_been_paid_for(client_of: Make) -> None:
    start = b'event: message_start\ndata: {"type": "message_start", "message": {"id": "m", "type": "message", '
    start += b'"role": "assistant", "model": "m", "content": [], "usage": {"input_tokens": 9, "output_tokens": 1}}}\n\n'
    error_event = b'event: error\ndata: {"type": "error", "error": {"type": "overloaded_error", "message": "busy"}}\n\n'
    with FakeProvider([fake.Raw(body=start + error_event, content_type="text/event-stream")]) as server:
        error = failure(client_of(server, "anthropic"))
    assert (error.kind, error.attempts, error.maybe_billed) == ("malformed", 1, True)
    assert "busy" in error.detail


def test_a_redirect_is_not_followed_with_the_key(client_of: Make) -> None:
    with FakeProvider([]) as other:
        step = fake.Refused(
            status=307, message="over there", headers={"location": other.base_url + "/chat/completions"}
        )
        with FakeProvider([step]) as server:
            assert failure(client_of(server)).kind == "malformed"
        assert other.requests == []


@pytest.mark.parametrize("protocol", ["anthropic", "openai", "google"])
def test_the_stable_part_is_the_same_in_all_rounds(client_of: Make, protocol: Protocol) -> None:
    rounds = (Turn(role="user", text="first"), Turn(role="assistant", text="```x```"))
    with FakeProvider([fake.reply("x"), fake.reply("y"), fake.reply("z")]) as server:
        client = client_of(server, protocol)
        for request in (ask("first"), ask("second", history=rounds), ask("another")):
            client.complete(request)
        texts = [seen.text for seen in server.requests]
        bodies = [seen.body for seen in server.requests]
    assert all(text.startswith("the rules\nthe variant\n") for text in texts)
    assert texts[1].splitlines()[-3:] == ["first", "```x```", "second"]
    if protocol == "anthropic":
        heads = [(body["system"], body["messages"][0]["content"][0]) for body in bodies]
        assert heads[0] == heads[1] == heads[2]
        assert sorted(marked(bodies[1])) == ["the rules", "the variant"]
        assert bodies[1]["messages"][0]["content"][1:] == [{"type": "text", "text": "first"}]
        assert [message["role"] for message in bodies[1]["messages"]] == ["user", "assistant", "user"]


def marked(value: object) -> list[str]:
    """The texts after which a cache is asked for."""
    if isinstance(value, list):
        return [text for item in value for text in marked(item)]
    if not isinstance(value, dict):
        return []
    own = [value["text"]] if "cache_control" in value else []
    return own + [text for item in value.values() for text in marked(item)]


def test_openai_is_told_which_requests_begin_alike(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "some-key-1234")
    with FakeProvider(lambda _: fake.reply("x", USAGE)) as server:
        path = tmp_path / "kforge.toml"
        path.write_text(f'[llm.providers.openai]\nbase_url = "{server.base_url}"\n')
        client = open_client("openai/gpt-5", load_settings({"KFORGE_LLM_CONFIG": str(path)}))
        done = client.complete(ask("one"))
        client.complete(ask("two"))
        client.complete(replace(ask("one"), stable="another variant"))
        keys = [seen.body["prompt_cache_key"] for seen in server.requests]
        assert keys[0] == keys[1] != keys[2]
        assert server.requests[0].body["max_completion_tokens"] == 500
        assert server.requests[0].key == "some-key-1234"
    # by the list: 200 * 1.25 + 800 * 0.125 + 300 * 10
    assert done.cost_usd == pytest.approx(0.00335, abs=1e-12)
    assert client.has_price
    assert client.cost_usd(USAGE) == done.cost_usd


def test_nothing_of_the_environment_goes_to_another_provider(client_of: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "OPENAI_ORG_ID", "OPENAI_PROJECT_ID", "ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN"):
        monkeypatch.setenv(name, "hunter2-hunter2")
    for name in ("OPENAI_BASE_URL", "ANTHROPIC_BASE_URL", "GOOGLE_GEMINI_BASE_URL"):
        monkeypatch.setenv(name, "http://127.0.0.1:9/")
    for name in ("GOOGLE_API_KEY", "GEMINI_API_KEY"):
        monkeypatch.setenv(name, "hunter2-hunter2")
    for protocol in ("anthropic", "openai", "google"):
        with FakeProvider([fake.reply("x")]) as server:
            client = client_of(server, protocol)
            client = ModelClient(client.config, "")
            assert client.complete(ask()).text == "x"
            assert "hunter2" not in str(server.requests[0])


def test_settings_of_a_model_are_sent(tmp_path: Path) -> None:
    with FakeProvider([fake.reply("x")]) as server:
        path = tmp_path / "kforge.toml"
        table = "[llm.providers.fake.models.m]\ntemperature = 0.25\nmax_output_tokens = 777\n"
        path.write_text(server.toml() + table)
        client = open_client("fake/m", load_settings({"KFORGE_LLM_CONFIG": str(path)}))
        assert (client.model, client.max_output_tokens, client.has_price) == ("fake/m", 777, False)
        client.complete(ask(limit=client.max_output_tokens))
        body = server.requests[0].body
    assert (body["temperature"], body["max_tokens"]) == (0.25, 777)
    assert "prompt_cache_key" not in body


def test_no_more_requests_at_a_time_than_allowed(client_of: Make) -> None:
    with FakeProvider(lambda _: fake.reply("x", delay_s=0.05)) as server:
        client = client_of(server, concurrency=5)
        with ThreadPoolExecutor(50) as pool:
            done = list(pool.map(client.complete, [ask(str(number)) for number in range(50)]))
        assert len(done) == len(server.requests) == 50
        assert 2 <= server.most_in_flight <= 5


def test_requests_start_at_equal_distances() -> None:
    """Fifty threads, in a time that passes only when one of them sleeps."""
    now, lock, starts = [0.0], threading.Lock(), []

    def sleep(seconds: float) -> None:
        with lock:
            now[0] += seconds

    limits = Limits(concurrency=50, requests_per_minute=30, clock=lambda: now[0], sleep=sleep)

    def one(_: int) -> None:
        with limits.place(), lock:
            starts.append(now[0])

    with ThreadPoolExecutor(50) as pool:
        list(pool.map(one, range(50)))
    starts.sort()
    # No k-th start before k * 2 s: so never more than 30 in a minute.
    assert len(starts) == 50
    assert all(start >= 2.0 * number - 1e-9 for number, start in enumerate(starts))


def test_the_rate_is_kept_on_the_wire(tmp_path: Path) -> None:
    with FakeProvider(lambda _: fake.reply("x")) as server:
        settings = written(tmp_path, server, "openai", requests_per_minute=1200, concurrency=50)
        client = ModelClient(configure("fake/org/m", settings), "")
        began = time.monotonic()
        with ThreadPoolExecutor(20) as pool:
            list(pool.map(client.complete, [ask()] * 20))
        starts = sorted(seen.started - began for seen in server.requests)
    assert all(start >= 0.05 * number for number, start in enumerate(starts))


def test_a_refused_thread_holds_the_others_back(tmp_path: Path) -> None:
    def script(seen: fake.SeenRequest) -> Step:
        return fake.rate_limited("1") if seen.number == 0 else fake.reply("x")

    with FakeProvider(script) as server:
        client = ModelClient(configure("fake/org/m", written(tmp_path, server, "openai", concurrency=1)), "")
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(client.complete, [ask()] * 4))
        first, *others = server.requests
    assert len(others) == 4
    assert min(seen.started for seen in others) - first.started >= 1.0


@pytest.mark.parametrize("missing", ["pydantic_ai.direct", "pydantic_ai.models.openai", "genai_prices"])
def test_without_the_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: str) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    with FakeProvider([]) as server, pytest.raises(EnvironmentMissing) as caught:
        open_client("fake/org/m", written(tmp_path, server, "openai"))
    assert caught.value.hint == "pip install 'kernelforge[llm]'"


def test_without_a_key_nothing_is_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FAKE_KEY", raising=False)
    with FakeProvider([]) as server:
        with pytest.raises(EnvironmentMissing, match="FAKE_KEY, which is not set"):
            open_client("fake/org/m", written(tmp_path, server, "openai", api_key_env="FAKE_KEY"))
        assert server.requests == []


def test_importing_the_client_is_cheap() -> None:
    import subprocess

    code = "import sys, kernelforge.generate.llm.client; print(*sorted(sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    heavy = {"torch", "pydantic", "pydantic_ai", "openai", "anthropic", "google.genai", "genai_prices", "httpx2"}
    assert not heavy & set(loaded)
