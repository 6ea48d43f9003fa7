"""One attempt at one request, over pydantic-ai. Owns `exchange`, `Received`, `Failed`.

Each attempt has an event loop and an HTTP client of its own: attempts run in many threads, a connection belongs to the
loop that opened it, and opening one costs nothing beside the seconds that a model writes. pydantic-ai takes a second to
import, so it is imported where it is used.
"""

from __future__ import annotations

import asyncio
import json
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from ssl import SSLContext
from typing import TYPE_CHECKING, Any

from kernelforge.errors import HarnessError, UsageError
from kernelforge.generate.llm.config import ModelConfig
from kernelforge.generate.llm.redact import Redactor
from kernelforge.generate.llm.types import ChatRequest, FailureKind, FinishReason, TokenUsage

if TYPE_CHECKING:
    import httpx2
    from pydantic_ai.messages import ModelMessage, ModelResponse
    from pydantic_ai.models import Model
    from pydantic_ai.settings import ModelSettings

CONNECT_TIMEOUT_S = 10.0
LONGEST_DETAIL = 300
MOST_TOKENS = 10**9
"""Of one call. A provider that says more has not counted."""
MOST_NESTED = 8
"""Of a usage."""

NO_KEY = "no-key-needed"
"""Sent where none is needed, because the providers' packages insist on one and would look for it elsewhere."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Received:
    """A whole reply. usage: None if the provider did not say it."""

    text: str
    usage: TokenUsage | None
    finish_reason: FinishReason
    request_id: str
    model: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """No reply.

    Attributes:
        detail: in words, without secrets. retry: whether the same request may do better, and was not paid for.
        retry_after_s: how long the provider asks to wait; None if it did not.
    """

    kind: FailureKind
    detail: str
    retry: bool = False
    retry_after_s: float | None = None


def tls_context() -> SSLContext:
    """What the attempts of a client share: reading the system's certificates takes longer than all else they do."""
    import httpx2

    return httpx2.create_ssl_context()


def exchange(
    config: ModelConfig, key: str, request: ChatRequest, *, redact: Redactor, tls: SSLContext
) -> Received | Failed:
    """Send a request once.

    Raises:
        UsageError: the model's configured settings cannot be sent to it. HarnessError: a fault of ours.
    """
    redact.guard_logs()
    _be_quiet_about_usage()
    reply = _Reply()
    try:
        received = asyncio.run(_ask(config, key, request, reply, tls))
    except Exception as error:  # noqa: BLE001 - a process boundary: what a provider sends can break any of its libraries
        failed = _classify(error, config, reply, redact)
    else:
        return _judge(received, config, redact)
    # Outside of the handler, so that nothing that is raised from here carries the reply as its context.
    if isinstance(failed, Exception):
        raise failed
    return failed


def _be_quiet_about_usage() -> None:
    """A usage that cannot be read is unknown to us, and no matter for the user's terminal."""
    from pydantic_ai.exceptions import UsageExtractionFailedWarning

    # For the whole process and not for a while: filters are shared by all threads. The same filter counts once.
    warnings.filterwarnings("ignore", category=UsageExtractionFailedWarning)


class _Reply:
    """Whether the provider has begun to answer. After that a failure may have been paid for."""

    def __init__(self) -> None:
        self.begun = False

    async def note(self, response: httpx2.Response) -> None:
        self.begun = True
        if response.is_success and response.headers.get("content-type", "").startswith("application/json"):
            # The providers' packages refuse the whole reply for a count that cannot be.
            response._content = _without_bad_usage(await response.aread())


def _without_bad_usage(body: bytes) -> bytes:
    """A reply of one JSON object, without its usage if that has numbers of tokens that cannot be."""
    try:
        reply = json.loads(body)
    except (ValueError, RecursionError):
        return body
    if not isinstance(reply, dict):
        return body
    bad = [name for name in ("usage", "usageMetadata") if not _can_be(reply.get(name), depth=0)]
    # Anthropic's package needs one.
    zero = {"input_tokens": 0, "output_tokens": 0} if reply.get("type") == "message" else None
    return json.dumps({**reply, **dict.fromkeys(bad, zero)}).encode() if bad else body


def _can_be(usage: object, *, depth: int) -> bool:
    """Whether all numbers of tokens in a usage are numbers of tokens. Other fields are the provider's own."""
    if isinstance(usage, list):
        return depth < MOST_NESTED and all(_can_be(part, depth=depth + 1) for part in usage)
    if not isinstance(usage, dict):
        return usage is None or depth > 0
    return depth < MOST_NESTED and all(
        _can_be(value, depth=depth + 1)
        if "details" in name.lower() or "token" not in name.lower()
        else value is None or _is_count(value)
        for name, value in usage.items()
    )


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value <= MOST_TOKENS


def _http_client(config: ModelConfig, reply: _Reply, tls: SSLContext) -> httpx2.AsyncClient:
    """For one attempt. Follows no redirects: they would take the key along."""
    import httpx2

    # No pool: there is one connection.
    timeout = httpx2.Timeout(config.timeout_s, connect=CONNECT_TIMEOUT_S, pool=None)

    async def keep_timeouts(request: httpx2.Request) -> None:
        # The providers' packages have one time for everything, and so would wait to connect as long as for a reply.
        request.extensions = {**request.extensions, "timeout": timeout.as_dict()}

    hooks: dict[str, list[Callable[..., Any]]] = {"request": [keep_timeouts], "response": [reply.note]}
    return httpx2.AsyncClient(timeout=timeout, verify=tls, event_hooks=hooks)


async def _ask(config: ModelConfig, key: str, request: ChatRequest, reply: _Reply, tls: SSLContext) -> ModelResponse:
    from pydantic_ai.direct import model_request, model_request_stream

    settings, messages = _settings(config, request), _messages(config, request)
    async with asyncio.timeout(config.timeout_s), _http_client(config, reply, tls) as http:
        model = _model(config, key or NO_KEY, http)
        if not config.stream:
            return await model_request(model, messages, model_settings=settings)
        async with model_request_stream(model, messages, model_settings=settings) as stream:
            async for _ in stream:
                pass
            return stream.get()


def _model(config: ModelConfig, key: str, http: httpx2.AsyncClient) -> Model:
    """The adapter of a protocol. Address and key are always given: nothing is taken from the environment."""
    if config.protocol == "anthropic":
        from anthropic import AsyncAnthropic
        from pydantic_ai.models.anthropic import AnthropicModel
        from pydantic_ai.providers.anthropic import AnthropicProvider

        anthropic = AsyncAnthropic(
            api_key=key, base_url=config.base_url, max_retries=0, timeout=config.timeout_s, http_client=http
        )
        return AnthropicModel(config.model, provider=AnthropicProvider(anthropic_client=anthropic))
    if config.protocol == "google":
        from pydantic_ai.models.google import GoogleModel
        from pydantic_ai.providers.google import GoogleProvider

        provider = GoogleProvider(api_key=key, base_url=config.base_url, http_client=http)
        return GoogleModel(config.model, provider=provider)
    return _openai_model(config, key, http)


def _openai_model(config: ModelConfig, key: str, http: httpx2.AsyncClient) -> Model:
    from openai import AsyncOpenAI
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.profiles.openai import OpenAIModelProfile
    from pydantic_ai.providers.openai import OpenAIProvider
    from pydantic_ai.providers.openai_compatible import OpenAICompatibleProvider

    openai = AsyncOpenAI(
        api_key=key, base_url=config.base_url, max_retries=0, timeout=config.timeout_s, http_client=http
    )
    if config.official:
        return OpenAIChatModel(config.model, provider=OpenAIProvider(openai_client=openai))
    # Found in OPENAI_ORG_ID and OPENAI_PROJECT_ID; nobody else's business.
    openai.organization = openai.project = None
    profile = OpenAIModelProfile(openai_chat_supports_max_completion_tokens=False)
    provider = OpenAICompatibleProvider(config.provider, openai_client=openai, profile=profile)
    return OpenAIChatModel(config.model, provider=provider)


def _settings(config: ModelConfig, request: ChatRequest) -> ModelSettings:
    from kernelforge.digest import digest

    settings: dict[str, Any] = {"max_tokens": request.max_output_tokens}
    if config.temperature is not None:
        settings["temperature"] = config.temperature
    if config.thinking is not None:
        settings["thinking"] = config.thinking
    if config.protocol == "anthropic":
        settings["anthropic_cache_instructions"] = True
    elif config.protocol == "openai" and config.official:
        # Requests with the same beginning go to the same machine, which has it in its cache.
        settings["openai_prompt_cache_key"] = digest([request.system, request.stable])[:32]
    return settings  # type: ignore[return-value]


def _messages(config: ModelConfig, request: ChatRequest) -> list[ModelMessage]:
    from pydantic_ai.messages import (
        CachePoint,
        ModelRequest,
        ModelResponse,
        SystemPromptPart,
        TextPart,
        UserContent,
        UserPromptPart,
    )

    first, *rest = request.turns
    content: str | list[UserContent] = f"{request.stable}\n\n{first.text}"
    if config.protocol == "anthropic":
        content = [request.stable, CachePoint(), first.text]
    messages: list[ModelMessage] = [
        ModelRequest(parts=[SystemPromptPart(content=request.system), UserPromptPart(content=content)])
    ]
    for turn in rest:
        if turn.role == "user":
            messages.append(ModelRequest(parts=[UserPromptPart(content=turn.text)]))
        else:
            messages.append(ModelResponse(parts=[TextPart(content=turn.text)]))
    return messages


_FINISH: dict[str, FinishReason] = {"stop": "stop", "length": "length", "content_filter": "refusal"}


def _judge(response: ModelResponse, config: ModelConfig, redact: Redactor) -> Received | Failed:
    """Whether what was received is a whole reply."""
    from pydantic_ai.messages import TextPart

    said = (response.provider_details or {}).get("finish_reason")
    if (
        said is None
        and (config.stream or response.finish_reason is None)
        and response.finish_reason != "content_filter"
    ):
        # The connection was closed in an orderly way, but the reply has no end. Where a reply is one JSON object, it is
        # whole even if a local server does not say why it ended, and pydantic-ai takes that as "stop".
        return Failed(kind="malformed", detail="the reply ended without a reason to finish")
    text = "".join(part.content for part in response.parts if isinstance(part, TextPart))
    return Received(
        # JSON can hold halves of surrogate pairs, which can be neither stored nor sent back.
        text=redact.exact(text.encode("utf-8", "replace").decode()),
        usage=_usage(response),
        finish_reason=_FINISH.get(response.finish_reason or "", "other"),
        request_id=redact(response.provider_response_id or ""),
        model=redact(response.model_name or ""),
    )


def _usage(response: ModelResponse) -> TokenUsage | None:
    """pydantic-ai counts cached tokens among those of the input, and reasoning among those of the output, as we do."""
    usage = response.usage
    details = usage.details if isinstance(usage.details, dict) else {}
    counts = (
        usage.input_tokens, usage.output_tokens, usage.cache_read_tokens, usage.cache_write_tokens,
        usage.output_reasoning_tokens or details.get("reasoning_tokens", 0),
    )  # fmt: skip
    # Providers send what they like, and a budget is kept by it: what cannot be counts as not said.
    if not all(_is_count(count) for count in counts) or not any(counts[:2]):
        return None
    input_tokens, output_tokens, cache_read_tokens, cache_write_tokens, reasoning_tokens = counts
    return TokenUsage(
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        cache_read_tokens=cache_read_tokens,
        cache_write_tokens=cache_write_tokens,
        reasoning_tokens=reasoning_tokens,
    )


def _classify(error: Exception, config: ModelConfig, reply: _Reply, redact: Redactor) -> Failed | Exception:
    """What an exception of an attempt means. Returns what is to be raised if it is no matter of the provider."""
    import httpx2
    from pydantic_ai.exceptions import ModelConnectionError, ModelHTTPError, ModelTimeoutError, UserError

    detail = shorten(redact(_words(error)))
    if isinstance(error, UserError):
        return UsageError(f"{config.name} cannot be asked: {detail}", hint="correct the settings of the model")
    if isinstance(error, ModelHTTPError) and not error.in_stream:
        return _by_status(error, redact)
    sent = not (isinstance(error, ModelConnectionError) and error.phase in {"connect", "pool"})
    if isinstance(error, TimeoutError | ModelTimeoutError | httpx2.TimeoutException) and sent:
        return Failed(kind="timeout", detail=f"no whole reply within {config.timeout_s:g} s")
    if reply.begun:
        return Failed(kind="malformed", detail=detail)
    if isinstance(error, ModelConnectionError | httpx2.TransportError):
        return Failed(kind="connection", detail=detail, retry=True)
    return HarnessError(f"asking {config.name} failed before anything was sent: {type(error).__name__}: {detail}")


def _words(error: BaseException) -> str:
    """What an exception says, and what the one says that it began with: packages wrap those of the connection."""
    first = error
    while first.__cause__ is not None:
        first = first.__cause__
    said = str(error) or type(error).__name__
    cause = str(first) or type(first).__name__
    return said if cause in said else f"{said} {cause}"


def _by_status(error: Any, redact: Redactor) -> Failed:
    """What a reply with an error status means. error: a `ModelHTTPError`."""
    from pydantic_ai.exceptions import ModelQuotaExceededError

    status: int = error.status_code
    detail = shorten(redact(f"HTTP {status}: {_message(error.body)}"))
    if status in {401, 402, 403}:
        return Failed(kind="auth", detail=detail)
    if status == 429:
        # Waiting does not fill an account.
        retry = not isinstance(error, ModelQuotaExceededError)
        return Failed(kind="rate_limit", detail=detail, retry=retry, retry_after_s=error.retry_after)
    if status >= 500:
        return Failed(kind="server", detail=detail, retry=True, retry_after_s=error.retry_after)
    return Failed(kind="bad_request" if status >= 400 else "malformed", detail=detail)


def _message(body: object) -> str:
    """What the provider says of an error, in whichever of the usual forms."""
    if isinstance(body, dict):
        return _message(body.get("error") or body.get("message") or str(body))
    return " ".join(str(body or "no details").split())


def shorten(text: str) -> str:
    """At most `LONGEST_DETAIL` characters. Redact first: half a key is still half a key."""
    return text if len(text) <= LONGEST_DETAIL else text[: LONGEST_DETAIL - 1] + "…"
