"""No key in any message, log record or repr, whatever a provider does with it."""

from __future__ import annotations

import json
import logging
import traceback
from pathlib import Path
from urllib.parse import quote

import pytest
from tests.fakes import provider as fake
from tests.fakes.wire_formats import Protocol

from kernelforge.generate.llm.client import open_client
from kernelforge.generate.llm.redact import HIDDEN, Redactor
from kernelforge.generate.llm.types import ChatRequest, ProviderFailure, Turn
from kernelforge.settings import load_settings

# Without a mark such as "sk-", so that only knowing it can hide it; with characters that are quoted in a URL.
KEY = "vErySecret+Key/0123456789=="
REQUEST = ChatRequest(system="s", stable="t", turns=(Turn(role="user", text="u"),), max_output_tokens=100)


@pytest.mark.parametrize(
    ("text", "rest"),
    [
        ("Authorization: Bearer abc.def-123456", "Authorization: "),
        ("{'x-api-key': 'abcd1234', 'host': 'h'}", "'host': 'h'"),
        ('{"X-API-Key": "abcd1234"}', '"}'),
        ("[(b'x-goog-api-key', b'abcd1234'), (b'a', b'b')]", "(b'a', b'b')"),
        ("sent bearer abcd1234efgh to h", " to h"),
        ("Incorrect API key provided: sk-abcd1234-EFGH5678_ij.", "provided: "),
        ("https://h/v1?key=AIza0123456789abcdefghijABCDEFGHIJ-_x", "https://h/v1?key="),
    ],
)
def test_what_looks_like_a_key_is_hidden_and_the_rest_is_not(text: str, rest: str) -> None:
    cleaned = Redactor()(text)
    assert HIDDEN in cleaned
    assert rest in cleaned
    assert not any(part in cleaned for part in ("abc.def", "abcd1234", "AIza"))


def test_a_known_key_is_hidden_in_any_form_and_a_reply_is_else_left_alone() -> None:
    redact = Redactor((KEY,))
    assert redact.exact(f"a {KEY} b") == f"a {HIDDEN} b"
    assert "vErySecret" not in redact(f"https://h/?k={KEY}&q=vErySecret%2BKey%2F0123456789%3D%3D")
    source = "// authorization: bearer abcdefghij\nint x = 1;"
    assert redact.exact(source) == source
    assert Redactor(("EMPTY",)).exact("EMPTY") == "EMPTY"
    assert KEY not in repr(redact)
    assert redact(redact(f"x-api-key: {KEY}")) == redact(f"x-api-key: {KEY}") == f"x-api-key: {HIDDEN}"


@pytest.mark.parametrize("key", ["schlüssel-ñ-123456", "ключ-12345678", "ключключ"])
def test_a_key_of_other_letters_is_hidden_in_other_encodings_too(key: str) -> None:
    redact = Redactor((key,))
    echoes = [
        key, json.dumps(key), ascii(key), repr(key.encode()), key.encode().decode("latin-1"), quote(key),
        key.encode().decode("cp1252", "replace"), json.dumps(key.encode().decode("latin-1")),
    ]  # fmt: skip
    assert [text for text in echoes if HIDDEN not in redact.exact(f"a {text} b")] == []
    assert redact.exact("what? nothing???????") == "what? nothing???????"


@pytest.mark.parametrize(
    ("protocol", "stream"), [("anthropic", True), ("openai", False), ("openai", True), ("google", False)]
)
def test_no_key_gets_out(
    protocol: Protocol,
    stream: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    steps: list[fake.Step] = [
        fake.reply("the key is {key}"), fake.empty(), fake.rate_limited(message="{key}"), fake.server_error(),
        *(fake.key_echo(status) for status in (400, 401, 418, 429, 529)),
        fake.Raw(body=b'{"choices": "{key}"'), fake.Raw(body=b'{"error": {"message": "{key}"}}'),
        fake.Raw(body=b"data: {key}\n\n", content_type="text/event-stream"),
        fake.Raw(body=b"<html>{key}</html>", content_type="text/html"), fake.html(),
        fake.Raw(body=b"{key}", content_type="text/plain", status=503), fake.cut(), fake.reset(), fake.hang(),
    ]  # fmt: skip
    monkeypatch.setenv("FAKE_KEY", KEY)
    caplog.set_level(logging.DEBUG)
    said = []
    with fake.FakeProvider(steps) as server:
        path = tmp_path / "kforge.toml"
        path.write_text(
            server.toml(protocol=protocol, api_key_env="FAKE_KEY", max_retries=0, timeout_s=0.5, stream=stream)
        )
        settings = load_settings({"KFORGE_LLM_CONFIG": str(path)})
        client = open_client("fake/m", settings)
        said += [repr(client), str(client), repr(settings), repr(vars(client)["config"])]
        for _ in steps:
            try:
                said.append(repr(client.complete(REQUEST)))
            except ProviderFailure as error:
                said += [*traceback.format_exception(error), repr(error), error.detail]
                assert (error.__cause__, error.__context__) == (None, None)
        # The server did get it, each time.
        assert [seen.key for seen in server.requests] == [KEY] * len(steps)
    handler = logging.Formatter("%(message)s")
    records = [f"{record.name} {handler.format(record)} {record.__dict__}" for record in caplog.records]
    assert len(records) > 100
    assert {record.name.partition(".")[0] for record in caplog.records} >= {"httpx2", "httpcore2"}
    # In JSON, too: a backslash may stand before a slash.
    assert [text for text in [*said, *records] if KEY in text or json.dumps(KEY)[1:-1] in text] == []
    assert sum(HIDDEN in text for text in said) > 5
