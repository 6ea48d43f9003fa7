"""Costs against sums that were made by hand."""

from __future__ import annotations

from typing import Any

import pytest

from kernelforge.generate.llm import prices
from kernelforge.generate.llm.config import FREE, ModelConfig, Price
from kernelforge.generate.llm.types import ChatRequest, TokenUsage, Turn

PRICE = Price(input=3.0, output=15.0, cache_read=0.3, cache_write=3.75)


def config(model: str = "m", **other: Any) -> ModelConfig:
    fields: dict[str, Any] = {
        **{"provider": "p", "model": model, "protocol": "openai", "base_url": "http://h", "official": False},
        **{"api_key_env": "", "timeout_s": 1.0, "max_retries": 0, "requests_per_minute": 0.0, "concurrency": 1},
        **{"stream": False, "max_output_tokens": 1000, "context_tokens": 0, "price": None, "price_list": ""},
        **{"temperature": None, "thinking": None},
    }
    return ModelConfig(**{**fields, **other})


ANTHROPIC = TokenUsage(input_tokens=1000, cache_write_tokens=700, cache_read_tokens=200, output_tokens=50)
LONG = TokenUsage(input_tokens=300_000, output_tokens=50)
OPENAI = TokenUsage(input_tokens=1000, cache_read_tokens=800, output_tokens=300, reasoning_tokens=250)


@pytest.mark.parametrize(
    ("of", "usage", "usd"),
    [
        # 100 * 3 + 700 * 3.75 + 200 * 0.3 + 50 * 15, in millionths
        (config("claude-sonnet-4-5", price_list="anthropic"), ANTHROPIC, 0.003735),
        (config(price=PRICE), ANTHROPIC, 0.003735),
        # 200 * 1.25 + 800 * 0.125 + 300 * 10: reasoning is part of the 300
        (config("gpt-5", price_list="openai"), OPENAI, 0.00335),
        (config(price=Price(input=1.25, output=10, cache_read=0.125, cache_write=1.25)), OPENAI, 0.00335),
        # above 200,000 tokens of input: 300,000 * 6 + 50 * 22.5
        (config("claude-sonnet-4-5", price_list="anthropic"), LONG, 1.801125),
        # above 200,000: 300,000 * 2.5 + 50 * 15
        (config("gemini-2.5-pro", price_list="google"), LONG, 0.75075),
        (config(price=FREE), OPENAI, 0.0),
        # a configured price comes before the list
        (config("gpt-5", price_list="openai", price=FREE), OPENAI, 0.0),
    ],
)  # fmt: skip
def test_costs_as_made_by_hand(of: ModelConfig, usage: TokenUsage, usd: float) -> None:
    assert prices.cost_usd(of, usage) == pytest.approx(usd, abs=1e-12)
    assert prices.has_price(of)


@pytest.mark.parametrize(
    "of",
    [config(), config("no-such-model", price_list="openai"), config("gpt-5", price_list="no-such-provider")],
)
def test_what_is_not_known_is_none_and_not_nothing(of: ModelConfig) -> None:
    request = ChatRequest(system="a", stable="b", turns=(Turn(role="user", text="c"),), max_output_tokens=10)
    assert prices.cost_usd(of, OPENAI) is None
    assert prices.bound_usd(of, request) is None
    assert not prices.has_price(of)


def test_usage_that_contradicts_itself_has_no_cost() -> None:
    assert prices.cost_usd(config(price=PRICE), TokenUsage(input_tokens=10, cache_read_tokens=11)) is None
    of = config("gpt-5", price_list="openai")
    assert prices.cost_usd(of, TokenUsage(input_tokens=10, cache_read_tokens=11)) is None
    assert prices.cost_usd(of, TokenUsage(output_tokens=10, reasoning_tokens=11)) is None


def test_the_bound_takes_each_byte_as_a_token_that_is_written_to_the_cache() -> None:
    # "ä" has two bytes: 4 of text, 10 tokens of output
    request = ChatRequest(system="ä", stable="b", turns=(Turn(role="user", text="c"),), max_output_tokens=10)
    assert prices.bound_usd(config(price=PRICE), request) == pytest.approx((4 * 3.75 + 10 * 15) / 1e6, abs=1e-15)
    dear_plain = Price(input=4.0, output=15.0, cache_read=0.3, cache_write=3.75)
    assert prices.bound_usd(config(price=dear_plain), request) == pytest.approx((4 * 4.0 + 150) / 1e6, abs=1e-15)


def test_the_bound_is_in_the_tier_that_a_long_request_can_reach() -> None:
    request = ChatRequest(system="x" * 250_000, stable="", turns=(Turn(role="user", text=""),), max_output_tokens=1000)
    # 250,000 * 7.5 + 1,000 * 22.5
    of = config("claude-sonnet-4-5", price_list="anthropic")
    assert prices.bound_usd(of, request) == pytest.approx(1.8975, abs=1e-9)


@pytest.mark.parametrize("name", ["claude-sonnet-4-5", "claude-opus-4-5", "claude-haiku-4-5"])
@pytest.mark.parametrize("tokens", [1, 1000, 199_999, 200_001, 400_000])
def test_no_split_of_the_same_text_costs_more_than_the_bound(name: str, tokens: int) -> None:
    of = config(name, price_list="anthropic")
    request = ChatRequest(system="x" * tokens, stable="", turns=(Turn(role="user", text=""),), max_output_tokens=5000)
    bound = prices.bound_usd(of, request)
    assert bound is not None
    for read, written in ((0, 0), (tokens, 0), (0, tokens), (tokens // 2, tokens // 3)):
        usage = TokenUsage(input_tokens=tokens, output_tokens=5000, cache_read_tokens=read, cache_write_tokens=written)
        cost = prices.cost_usd(of, usage)
        assert cost is not None
        assert cost <= bound


@pytest.mark.parametrize("dearest", ["input", "cache_read", "cache_write"])
def test_the_bound_takes_the_dearest_kind_of_input(dearest: str) -> None:
    prices_of = {"input": 1.0, "cache_read": 1.0, "cache_write": 1.0, "output": 2.0, dearest: 9.0}
    request = ChatRequest(system="ab", stable="", turns=(Turn(role="user", text="cd"),), max_output_tokens=10)
    assert prices.bound_usd(config(price=Price(**prices_of)), request) == pytest.approx((4 * 9 + 20) / 1e6, abs=1e-15)
