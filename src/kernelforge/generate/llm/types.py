"""One exchange with a language model. Owns `ChatRequest`, `Completion`, `TokenUsage`, `LLMClient`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias

from kernelforge.digest import digest

FinishReason: TypeAlias = Literal["stop", "length", "refusal", "other"]
FailureKind: TypeAlias = Literal["auth", "bad_request", "rate_limit", "server", "connection", "timeout", "malformed"]

NEVER_BILLED: frozenset[FailureKind] = frozenset({"auth", "bad_request", "rate_limit", "server", "connection"})
"""The provider refused, or was not reached. After the others it may have worked for us, and charge for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One message after the stable part: what was asked, or what the model answered."""

    role: Literal["user", "assistant"]
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatRequest:
    """What is sent to a model.

    Attributes:
        system: the rules. stable: the head of the first message. Both are byte-identical in all rounds of a variant,
            and a provider is told to cache them.
        turns: the rest, beginning and ending with a user's; the first one belongs to the same message as `stable`.
        max_output_tokens: reasoning included.
    """

    system: str
    stable: str
    turns: tuple[Turn, ...]
    max_output_tokens: int

    @property
    def text_bytes(self) -> int:
        """Of all text that is sent, in UTF-8: no tokenizer makes more tokens than that of it."""
        return sum(len(text.encode()) for text in (self.system, self.stable, *(turn.text for turn in self.turns)))

    @property
    def digest(self) -> str:
        turns = [[turn.role, turn.text] for turn in self.turns]
        return digest([self.system, self.stable, turns, self.max_output_tokens])


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenUsage:
    """Tokens of one call.

    Attributes:
        input_tokens: all that was read, those from and into the provider's cache included.
        cache_read_tokens, cache_write_tokens: parts of them.
        output_tokens: all that was written, reasoning included. reasoning_tokens: part of them.
    """

    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    reasoning_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """A reply that was received to its end.

    Attributes:
        usage: None if the provider did not say it. cost_usd: US dollars; None if usage or price is unknown.
        seconds: from the first attempt to the last byte. attempts: HTTP requests it took.
        request_id: the provider's, or "". model: as the provider names it.
    """

    text: str
    usage: TokenUsage | None
    cost_usd: float | None
    finish_reason: FinishReason
    seconds: float
    attempts: int = 1
    request_id: str = ""
    model: str = ""


class ProviderFailure(Exception):
    """A call that brought no reply. Never becomes text of a kernel. Its detail holds no secret.

    Attributes:
        kind: what went wrong. detail: in words, of the provider where it said something. seconds, attempts: as in
            `Completion`.
    """

    def __init__(self, kind: FailureKind, detail: str, *, seconds: float = 0.0, attempts: int = 1) -> None:
        super().__init__(f"{kind}: {detail}")
        self.kind = kind
        self.detail = detail
        self.seconds = seconds
        self.attempts = attempts

    @property
    def maybe_billed(self) -> bool:
        return maybe_billed(self.kind)


def maybe_billed(kind: FailureKind) -> bool:
    """Whether the provider may charge for a call that failed so."""
    return kind not in NEVER_BILLED


class LLMClient(Protocol):
    """Sends requests to one model. Thread-safe; waits, retries and limits its own rate."""

    @property
    def model(self) -> str:
        """ "PROVIDER/MODEL", as it was asked for."""
        ...

    @property
    def max_output_tokens(self) -> int:
        """The most that one reply may have, reasoning included."""
        ...

    @property
    def has_price(self) -> bool:
        """Whether the cost of a call is known."""
        ...

    def cost_usd(self, usage: TokenUsage) -> float | None:
        """US dollars, None if the model has no known price."""
        ...

    def bound_usd(self, request: ChatRequest) -> float | None:
        """The most that a request can cost: each byte a token, none of them cached, and the longest reply."""
        ...

    def complete(self, request: ChatRequest) -> Completion:
        """The model's reply.

        Raises:
            ProviderFailure: there is none. EnvironmentMissing: the provider's package or key is missing.
        """
        ...
