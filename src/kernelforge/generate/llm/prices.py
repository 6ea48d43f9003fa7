"""What calls cost, in US dollars: by the configured price, else by the list that genai-prices carries offline.

What is not known is None, never 0.
"""

from __future__ import annotations

import itertools
from decimal import Decimal

from kernelforge.generate.llm.config import ModelConfig, Price
from kernelforge.generate.llm.types import ChatRequest, TokenUsage

_MILLION = Decimal(1_000_000)


def cost_usd(config: ModelConfig, usage: TokenUsage) -> float | None:
    """The cost of one call. None if the model has no known price, or the usage contradicts itself."""
    plain = usage.input_tokens - usage.cache_read_tokens - usage.cache_write_tokens
    if plain < 0 or usage.reasoning_tokens > usage.output_tokens:
        return None
    if config.price is not None:
        return float(_by_price(config.price, usage, plain))
    return _by_list(config.price_list, config.model, usage) if config.price_list else None


def bound_usd(config: ModelConfig, request: ChatRequest) -> float | None:
    """The most that a request can cost: each byte a token, the dearest of plain and cached input, the longest reply."""
    size, longest = request.text_bytes, request.max_output_tokens
    costs = [
        cost_usd(
            config,
            TokenUsage(
                input_tokens=size, output_tokens=longest, cache_read_tokens=read, cache_write_tokens=written,
                reasoning_tokens=reasoning,
            ),
        )
        for (read, written), reasoning in itertools.product(((0, 0), (size, 0), (0, size)), (0, longest))
    ]  # fmt: skip
    known = [cost for cost in costs if cost is not None]
    return max(known) if len(known) == len(costs) else None


def has_price(config: ModelConfig) -> bool:
    return cost_usd(config, TokenUsage(input_tokens=1, output_tokens=1)) is not None


def _by_price(price: Price, usage: TokenUsage, plain: int) -> Decimal:
    parts = (
        (plain, price.input),
        (usage.cache_read_tokens, price.cache_read),
        (usage.cache_write_tokens, price.cache_write),
        (usage.output_tokens, price.output),
    )
    # Through their shortest decimal form: 0.1 dollars are meant as such.
    return sum((tokens * Decimal(repr(usd)) for tokens, usd in parts), start=Decimal(0)) / _MILLION


def _by_list(provider: str, model: str, usage: TokenUsage) -> float | None:
    # 0.1 s to import.
    import genai_prices

    counted = genai_prices.Usage(
        input_tokens=usage.input_tokens,
        cache_read_tokens=usage.cache_read_tokens,
        cache_write_tokens=usage.cache_write_tokens,
        output_tokens=usage.output_tokens,
        output_reasoning_tokens=usage.reasoning_tokens,
    )
    try:
        found = genai_prices.calc_price(counted, model, provider_id=provider)
    except LookupError:
        return None
    # A model that is listed without a price for one of them would else count as free.
    if found.model_price.input_mtok is None or found.model_price.output_mtok is None:
        return None
    return float(found.total_price)
