"""The `[llm]` part of a kforge.toml: reads and checks it. Imports pydantic; import it where it is used.

No message repeats a value of the file, because the value may be a key in the wrong place.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, field_validator, model_validator

from kernelforge.errors import UsageError
from kernelforge.generate.llm.config import FREE, Builtin, Price, Protocol, Thinking, load_toml

_SECRET_FIELDS = {"api_key", "apikey", "authorization", "bearer", "key", "password", "secret", "token"}
DEAREST = 1e6
"""US dollars per million tokens. Nothing costs that much, and sums of such prices stay finite."""
_LOOPBACK = {"127.0.0.1", "::1", "localhost"}


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, hide_input_in_errors=True)


class PriceTable(_Strict):
    """US dollars per million tokens. What is not said of the cache costs as much as plain input."""

    input: float = Field(ge=0, le=DEAREST)
    output: float = Field(ge=0, le=DEAREST)
    cache_read: float | None = Field(default=None, ge=0, le=DEAREST)
    cache_write: float | None = Field(default=None, ge=0, le=DEAREST)


def _zero_is_free(value: object) -> object:
    return {"input": 0, "output": 0} if value == 0 and not isinstance(value, bool) else value


class ModelTable(_Strict):
    """`[llm.providers.NAME.models."MODEL"]`."""

    max_output_tokens: int | None = Field(default=None, gt=0)
    context_tokens: int | None = Field(default=None, gt=0)
    price: Annotated[PriceTable | None, BeforeValidator(_zero_is_free)] = None
    free: bool = False
    temperature: float | None = Field(default=None, ge=0, le=2)
    thinking: Thinking | None = None

    @model_validator(mode="after")
    def _consistent(self) -> ModelTable:
        if self.free and self.price is not None:
            raise ValueError("both free and price are set")
        if self.context_tokens and self.max_output_tokens and self.max_output_tokens >= self.context_tokens:
            raise ValueError("max_output_tokens leaves nothing of context_tokens for the request")
        return self

    def known_price(self) -> Price | None:
        """None if the table says nothing of it."""
        if self.free:
            return FREE
        if (price := self.price) is None:
            return None
        read = price.input if price.cache_read is None else price.cache_read
        write = price.input if price.cache_write is None else price.cache_write
        return Price(input=price.input, output=price.output, cache_read=read, cache_write=write)


class ProviderTable(_Strict):
    """`[llm.providers.NAME]`. What is None is left to the built-in provider of that name, or to the defaults."""

    protocol: Protocol | None = None
    base_url: str | None = None
    api_key_env: str | None = None
    timeout_s: float | None = Field(default=None, gt=0, le=24 * 3600)
    max_retries: int | None = Field(default=None, ge=0, le=20)
    requests_per_minute: float | None = Field(default=None, ge=0)
    concurrency: int | None = Field(default=None, gt=0, le=1000)
    stream: bool | None = None
    price_list: str | None = None
    models: dict[str, ModelTable] = Field(default_factory=dict)

    @field_validator("base_url")
    @classmethod
    def _plain_url(cls, value: str) -> str:
        url = urlsplit(value)
        if url.scheme not in {"http", "https"} or not url.hostname:
            raise ValueError("must begin with http:// or https:// and a host")
        if url.username or url.password or url.query or url.fragment:
            raise ValueError("must hold no user, password or query; a key is read from the variable in api_key_env")
        return value.rstrip("/")

    @field_validator("api_key_env")
    @classmethod
    def _variable(cls, value: str) -> str:
        if value and not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", value):
            raise ValueError("must be the name of an environment variable, not a key")
        return value


class _Llm(_Strict):
    providers: dict[str, ProviderTable] = Field(default_factory=dict)


def read_providers(path: Path, *, builtin: Mapping[str, Builtin], trusted: bool) -> dict[str, ProviderTable]:
    """The providers of a file.

    Args:
        trusted: the user named or wrote the file, so that it may say where keys are sent and what that costs.

    Raises:
        UsageError: the file holds a key, something unknown, or what cannot be.
    """
    section = load_toml(path).get("llm", {})
    _refuse_keys(path, section, "llm")
    try:
        providers = _Llm.model_validate(section).providers
    except ValidationError as error:
        raise UsageError(f"{path}: {_in_words(error)}", hint="see docs/llm.md for the form of this file") from None
    for name, table in providers.items():
        problem = _problem(name, table, builtin.get(name), trusted=trusted)
        if problem:
            raise UsageError(f"{path}: [llm.providers.{name}] {problem[0]}", hint=problem[1])
    return providers


def _problem(name: str, table: ProviderTable, builtin: Builtin | None, *, trusted: bool) -> tuple[str, str] | None:
    """What is wrong with one table, and what to do; None if nothing is."""
    if "/" in name or not name:
        return "has a name that cannot stand before a slash", "rename it"
    if builtin is None:
        missing = [field for field in ("protocol", "base_url", "api_key_env") if getattr(table, field) is None]
        if missing:
            return f"lacks {', '.join(missing)}", 'api_key_env = "" says that no key is needed'
    elif table.protocol not in {None, builtin.protocol}:
        return f"is built in and speaks {builtin.protocol}", "give the table another name"
    if not trusted and builtin is not None and (table.price_list is not None or _has_prices(table)):
        hint = "if you trust it, set KFORGE_LLM_CONFIG to this file, or move the table to your own kforge.toml"
        return "would set prices, and so what a budget allows, in a file of the working folder", hint
    sends_key = (builtin is not None and table.api_key_env is None) or bool(table.api_key_env)
    if not trusted and sends_key and table.base_url and urlsplit(table.base_url).hostname not in _LOOPBACK:
        hint = "if you trust it, set KFORGE_LLM_CONFIG to this file, or move the table to your own kforge.toml"
        return "would send a key to an address that a file of the working folder chose", hint
    return None


def _has_prices(table: ProviderTable) -> bool:
    return any(model.known_price() is not None for model in table.models.values())


def _refuse_keys(path: Path, value: object, where: str) -> None:
    """Raise if any table has a field that is meant for a key, whatever it holds."""
    if not isinstance(value, dict):
        return
    for field, inner in value.items():
        # Names of providers and of models are not fields.
        if where not in {"llm.providers"} and not where.endswith(".models") and field.lower() in _SECRET_FIELDS:
            hint = "remove it, and name the environment variable that holds the key in api_key_env"
            raise UsageError(f"{path}: [{where}] {field}: keys are read from the environment only", hint=hint)
        _refuse_keys(path, inner, f"{where}.{field}")


def _in_words(error: ValidationError) -> str:
    """The first problem, with its place and, for a field that does not exist, the nearest that does."""
    first = error.errors(include_input=False, include_url=False, include_context=False)[0]
    *place, field = [str(part) for part in first["loc"]] or [""]
    where = f"[llm{''.join('.' + part for part in place)}] {field}"
    if first["type"] != "extra_forbidden":
        return f"{where}: {first['msg'].removeprefix('Value error, ')}"
    fields = {name for table in (_Llm, ProviderTable, ModelTable, PriceTable) for name in table.model_fields}
    near = difflib.get_close_matches(field, sorted(fields), n=1)
    return f"{where} is not known" + (f"; did you mean {near[0]}?" if near else "")
