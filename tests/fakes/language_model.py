"""A language model in memory: a script in place of a client."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from kernelforge.generate.llm.types import ChatRequest, Completion, FinishReason, ProviderFailure, TokenUsage

Step: TypeAlias = Completion | ProviderFailure | BaseException


def answer(
    text: str, *, usd: float | None = 0.01, finish: FinishReason = "stop", usage: TokenUsage | None = None
) -> Completion:
    """A reply of 100 tokens in and 50 out."""
    return Completion(
        text=text, usage=usage or TokenUsage(input_tokens=100, output_tokens=50), cost_usd=usd, finish_reason=finish,
        seconds=1.0, request_id="r", model="scripted-1",
    )  # fmt: skip


def kernel(source: str, said: str = "A new idea.", **more: object) -> Completion:
    """A reply with one kernel."""
    return answer(f"{said}\n\n```c++\n{source}\n```\n", **more)  # type: ignore[arg-type]


@dataclass
class ScriptedModel:
    """Gives its steps one after the other, or what a function makes of the request. Thread-safe.

    Attributes:
        price_usd: the bound of a call; None for a model without a price.
        asked: the requests.
    """

    steps: Sequence[Step] | Callable[[ChatRequest], Step] = ()
    price_usd: float | None = 0.1
    model: str = "fake/scripted"
    max_output_tokens: int = 32_000
    asked: list[ChatRequest] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def has_price(self) -> bool:
        return self.price_usd is not None

    def cost_usd(self, usage: TokenUsage) -> float | None:
        return self.price_usd and usage.input_tokens * 1e-6

    def bound_usd(self, request: ChatRequest) -> float | None:
        return self.price_usd

    def complete(self, request: ChatRequest) -> Completion:
        with self.lock:
            self.asked.append(request)
            number = len(self.asked) - 1
        step = self.steps(request) if callable(self.steps) else self.steps[number]
        if isinstance(step, BaseException):
            raise step
        return step
