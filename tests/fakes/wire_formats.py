"""What providers put on the wire, of OpenAI's Chat Completions, Anthropic's Messages and Google's generateContent.

Pure: from a reply in our own terms to JSON objects, and to the events of a stream.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Literal, TypeAlias

from kernelforge.generate.llm.types import TokenUsage

Protocol: TypeAlias = Literal["anthropic", "google", "openai"]
Finish: TypeAlias = Literal["stop", "length", "refusal"]
Json: TypeAlias = dict[str, Any]

PIECE = 4096
"""Characters of a reply in one event of a stream."""

_FINISH: dict[Protocol, dict[Finish, str]] = {
    "anthropic": {"stop": "end_turn", "length": "max_tokens", "refusal": "refusal"},
    "google": {"stop": "STOP", "length": "MAX_TOKENS", "refusal": "SAFETY"},
    "openai": {"stop": "stop", "length": "length", "refusal": "content_filter"},
}


def usage_of(protocol: Protocol, usage: TokenUsage) -> Json:
    """Token counts as the provider counts them. Only Anthropic's input excludes what is cached."""
    if protocol == "anthropic":
        counts: Json = {
            "input_tokens": usage.input_tokens - usage.cache_read_tokens - usage.cache_write_tokens,
            "cache_read_input_tokens": usage.cache_read_tokens,
            "cache_creation_input_tokens": usage.cache_write_tokens,
            "output_tokens": usage.output_tokens,
        }
        if usage.reasoning_tokens:
            counts["output_tokens_details"] = {"thinking_tokens": usage.reasoning_tokens}
        return counts
    if protocol == "google":
        return {
            "promptTokenCount": usage.input_tokens,
            "cachedContentTokenCount": usage.cache_read_tokens,
            # Google's does not include the thoughts.
            "candidatesTokenCount": usage.output_tokens - usage.reasoning_tokens,
            "thoughtsTokenCount": usage.reasoning_tokens,
            "totalTokenCount": usage.input_tokens + usage.output_tokens,
        }
    return {
        "prompt_tokens": usage.input_tokens,
        "completion_tokens": usage.output_tokens,
        "total_tokens": usage.input_tokens + usage.output_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cache_read_tokens},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
    }


def whole(protocol: Protocol, *, text: str, finish: Finish, usage: TokenUsage | None, model: str, number: int) -> Json:
    """A reply that is not streamed. number: of the request, for its id."""
    reason = _FINISH[protocol][finish]
    counts = None if usage is None else usage_of(protocol, usage)
    if protocol == "anthropic":
        content = [{"type": "text", "text": text}] if text else []
        return {
            **{"id": f"msg_{number}", "type": "message", "role": "assistant", "model": model, "content": content},
            **{"stop_reason": reason, "stop_sequence": None},
            "usage": counts or {"input_tokens": 0, "output_tokens": 0},
        }
    if protocol == "google":
        candidate = {"content": {"role": "model", "parts": [{"text": text}] if text else []}, "finishReason": reason}
        reply: Json = {"candidates": [candidate], "modelVersion": model, "responseId": f"google-{number}"}
        return reply if counts is None else {**reply, "usageMetadata": counts}
    message = {"role": "assistant", "content": text}
    reply = {
        **{"id": f"chatcmpl-{number}", "object": "chat.completion", "created": 1_700_000_000, "model": model},
        "choices": [{"index": 0, "message": message, "finish_reason": reason}],
    }
    return reply if counts is None else {**reply, "usage": counts}


def events(
    protocol: Protocol, *, text: str, finish: Finish, usage: TokenUsage | None, model: str, number: int
) -> Iterator[bytes]:
    """The same reply as server-sent events."""
    if protocol == "anthropic":
        yield from _anthropic_events(text, _FINISH[protocol][finish], usage, model, number)
    elif protocol == "google":
        yield _event(whole(protocol, text=text, finish=finish, usage=usage, model=model, number=number))
    else:
        yield from _openai_events(text, _FINISH[protocol][finish], usage, model, number)


def error_body(protocol: Protocol, status: int, message: str) -> Json:
    """An error in the provider's own form."""
    if protocol == "anthropic":
        kinds = {400: "invalid_request_error", 401: "authentication_error", 403: "permission_error"}
        kinds |= {404: "not_found_error", 429: "rate_limit_error", 529: "overloaded_error"}
        return {"type": "error", "error": {"type": kinds.get(status, "api_error"), "message": message}}
    if protocol == "google":
        names = {400: "INVALID_ARGUMENT", 401: "UNAUTHENTICATED", 403: "PERMISSION_DENIED", 404: "NOT_FOUND"}
        names |= {429: "RESOURCE_EXHAUSTED", 503: "UNAVAILABLE"}
        return {"error": {"code": status, "message": message, "status": names.get(status, "INTERNAL")}}
    return {"error": {"message": message, "type": "error", "param": None, "code": None}}


def _anthropic_events(text: str, reason: str, usage: TokenUsage | None, model: str, number: int) -> Iterator[bytes]:
    counts = usage_of("anthropic", usage) if usage else {"input_tokens": 0, "output_tokens": 0}
    message = whole("anthropic", text="", finish="stop", usage=usage, model=model, number=number)
    start = {**message, "stop_reason": None, "usage": {**counts, "output_tokens": 1 if usage else 0}}
    yield _event({"type": "message_start", "message": start})
    if text:
        yield _event({"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}})
        for piece in _pieces(text):
            delta = {"type": "text_delta", "text": piece}
            yield _event({"type": "content_block_delta", "index": 0, "delta": delta})
        yield _event({"type": "content_block_stop", "index": 0})
    end = {"stop_reason": reason, "stop_sequence": None}
    output = {key: value for key, value in counts.items() if key.startswith("output")}
    yield _event({"type": "message_delta", "delta": end, "usage": output})
    yield _event({"type": "message_stop"})


def _openai_events(text: str, reason: str, usage: TokenUsage | None, model: str, number: int) -> Iterator[bytes]:
    head = {"id": f"chatcmpl-{number}", "object": "chat.completion.chunk", "created": 1_700_000_000, "model": model}

    def chunk(delta: Json, finish: str | None) -> bytes:
        return _event({**head, "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]})

    yield chunk({"role": "assistant", "content": ""}, None)
    for piece in _pieces(text):
        yield chunk({"content": piece}, None)
    yield chunk({}, reason)
    if usage is not None:
        yield _event({**head, "choices": [], "usage": usage_of("openai", usage)})
    yield b"data: [DONE]\n\n"


def _pieces(text: str) -> Iterator[str]:
    for start in range(0, len(text), PIECE):
        yield text[start : start + PIECE]


def _event(data: Json) -> bytes:
    name = f"event: {data['type']}\n" if "type" in data else ""
    return f"{name}data: {json.dumps(data)}\n\n".encode()
