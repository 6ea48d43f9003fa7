"""The client of one model: limits, retries, prices. Owns `open_client`."""

from __future__ import annotations

import random
import time
from collections.abc import Callable

from kernelforge.errors import EnvironmentMissing
from kernelforge.generate.llm import prices
from kernelforge.generate.llm.config import INSTALL, ModelConfig, configure
from kernelforge.generate.llm.limits import Limits
from kernelforge.generate.llm.redact import Redactor
from kernelforge.generate.llm.types import ChatRequest, Completion, LLMClient, ProviderFailure, TokenUsage
from kernelforge.generate.llm.wire import Failed, Received, exchange, tls_context
from kernelforge.settings import Settings, secret

FIRST_BACKOFF_S = 1.0
LONGEST_BACKOFF_S = 60.0

LONGEST_WAIT_S = 300.0
"""A provider that asks for more is not waited for: a person should know."""


def open_client(name: str, settings: Settings) -> LLMClient:
    """The client of "PROVIDER/MODEL". Sends nothing yet.

    Raises:
        UsageError, NotFound: see `configure`. EnvironmentMissing: the packages or the key are missing.
    """
    config = configure(name, settings)
    key = secret(config.api_key_env) if config.api_key_env else ""
    if config.api_key_env and not key:
        hint = f"export {config.api_key_env}=..., or name another variable in api_key_env (docs/llm.md)"
        raise EnvironmentMissing(f"{config.name} needs a key in {config.api_key_env}, which is not set", hint=hint)
    return ModelClient(config, key)


def require_packages(config: ModelConfig) -> None:
    """Import what the model's protocol needs, which takes a second.

    Raises:
        EnvironmentMissing: it is not installed.
    """
    try:
        import genai_prices  # noqa: F401
        import pydantic_ai.direct

        if config.protocol == "anthropic":
            import pydantic_ai.models.anthropic
        elif config.protocol == "google":
            import pydantic_ai.models.google
        else:
            import pydantic_ai.models.openai  # noqa: F401
    except ImportError as error:
        raise EnvironmentMissing(
            f"{config.name} needs packages that are not installed: {error}", hint=INSTALL
        ) from None


class ModelClient:
    """Implements `LLMClient`. Thread-safe; not to be called in a thread that runs an event loop.

    Raises:
        EnvironmentMissing: the protocol's packages are not installed.

    Args:
        key: the provider's, "" if it needs none. clock, sleep, jitter: for tests; in seconds, the last one in [0, 1).
    """

    def __init__(
        self,
        config: ModelConfig,
        key: str,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        # Now, lest the first attempt's time goes into it.
        require_packages(config)
        self.config = config
        self._key = key
        self._redact = Redactor((key,) if key else ())
        self._tls = tls_context()
        self._clock, self._sleep, self._jitter = clock, sleep, jitter
        self._has_price = prices.has_price(config)
        self._limits = Limits(
            concurrency=config.concurrency,
            requests_per_minute=config.requests_per_minute,
            clock=clock,
            sleep=sleep,
        )

    def __repr__(self) -> str:
        return f"ModelClient({self.model!r})"

    @property
    def model(self) -> str:
        return self.config.name

    @property
    def max_output_tokens(self) -> int:
        return self.config.max_output_tokens

    @property
    def has_price(self) -> bool:
        return self._has_price

    def cost_usd(self, usage: TokenUsage) -> float | None:
        return prices.cost_usd(self.config, usage)

    def bound_usd(self, request: ChatRequest) -> float | None:
        return prices.bound_usd(self.config, request)

    def complete(self, request: ChatRequest) -> Completion:
        started: float | None = None
        attempts = 0
        while True:
            with self._limits.place():
                if started is None:
                    started = self._clock()
                attempts += 1
                outcome = exchange(self.config, self._key, request, redact=self._redact, tls=self._tls)
            seconds = self._clock() - started
            if isinstance(outcome, Received):
                return self._completion(outcome, seconds=seconds, attempts=attempts)
            wait_s = self._wait_s(outcome, attempts)
            if not outcome.retry or attempts > self.config.max_retries or wait_s > LONGEST_WAIT_S:
                raise ProviderFailure(outcome.kind, outcome.detail, seconds=seconds, attempts=attempts)
            if outcome.kind == "rate_limit":
                # The other threads would only be refused, too.
                self._limits.hold(wait_s)
            self._sleep(wait_s)

    def _wait_s(self, failed: Failed, attempts: int) -> float:
        """Seconds before the next attempt: twice as many each time, not the same for all, not less than asked for."""
        backoff = min(LONGEST_BACKOFF_S, FIRST_BACKOFF_S * 2.0 ** (attempts - 1)) * (0.5 + 0.5 * self._jitter())
        return max(backoff, failed.retry_after_s or 0.0)

    def _completion(self, received: Received, *, seconds: float, attempts: int) -> Completion:
        usage = received.usage
        return Completion(
            text=received.text,
            usage=usage,
            cost_usd=None if usage is None else self.cost_usd(usage),
            finish_reason=received.finish_reason,
            seconds=seconds,
            attempts=attempts,
            request_id=received.request_id,
            model=received.model,
        )
