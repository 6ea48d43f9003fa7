"""Which providers and models there are, by configuration. Owns `ModelConfig`, `Price`, `configure`.

Nothing is guessed from a model's name: a provider is a built-in one, or a table in a TOML file that says which
protocol it speaks. Files hold names of variables, never keys.
"""

from __future__ import annotations

import difflib
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from kernelforge.errors import EnvironmentMissing, NotFound, UsageError
from kernelforge.settings import Settings

if TYPE_CHECKING:
    from kernelforge.generate.llm.config_file import ModelTable, ProviderTable

Protocol: TypeAlias = Literal["anthropic", "google", "openai"]
Thinking: TypeAlias = bool | Literal["minimal", "low", "medium", "high", "xhigh", "max"]

FILE_NAME = "kforge.toml"
INSTALL = "pip install 'kernelforge[llm]'"

DEFAULT_MAX_OUTPUT_TOKENS = 16_384
DEFAULT_TIMEOUT_S = 600.0
DEFAULT_MAX_RETRIES = 4
DEFAULT_CONCURRENCY = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """US dollars per million tokens. cache_read, cache_write: of tokens from and into the provider's cache."""

    input: float
    output: float
    cache_read: float
    cache_write: float


FREE = Price(input=0.0, output=0.0, cache_read=0.0, cache_write=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """One model of one provider, with all defaults filled in. Holds no secret.

    Attributes:
        provider, model: as they were asked for. protocol: what is spoken on the wire.
        base_url: where. official: at the provider's own address, with all that its protocol has.
        api_key_env: the variable that holds the key; "" if none is needed.
        timeout_s: of one attempt, from connecting to the last byte. max_retries: attempts after the first.
        requests_per_minute: 0 is unlimited. concurrency: requests at a time. Both hold per client.
        stream: have the reply sent in pieces.
        max_output_tokens: the most that one reply may have, reasoning included.
        context_tokens: what the model can read and write at once; 0 is unknown.
        price: as configured. price_list: the provider's name in genai-prices, or "". Without both, cost is unknown.
        temperature, thinking: None leaves them to the provider.
    """

    provider: str
    model: str
    protocol: Protocol
    base_url: str
    official: bool
    api_key_env: str
    timeout_s: float
    max_retries: int
    requests_per_minute: float
    concurrency: int
    stream: bool
    max_output_tokens: int
    context_tokens: int
    price: Price | None
    price_list: str
    temperature: float | None
    thinking: Thinking | None

    @property
    def name(self) -> str:
        return f"{self.provider}/{self.model}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Builtin:
    """A provider that needs no table."""

    protocol: Protocol
    base_url: str
    api_key_env: str


BUILTIN: dict[str, Builtin] = {
    "anthropic": Builtin(protocol="anthropic", base_url="https://api.anthropic.com", api_key_env="ANTHROPIC_API_KEY"),
    "google": Builtin(
        protocol="google", base_url="https://generativelanguage.googleapis.com", api_key_env="GEMINI_API_KEY"
    ),
    "openai": Builtin(protocol="openai", base_url="https://api.openai.com/v1", api_key_env="OPENAI_API_KEY"),
}


def configure(name: str, settings: Settings) -> ModelConfig:
    """What is known of "PROVIDER/MODEL". The model's name may hold further slashes.

    Raises:
        UsageError: the name has another form, or a file says what cannot be. NotFound: no such provider.
        EnvironmentMissing: there is a file, and pydantic to read it with is missing.
    """
    provider, _, model = name.partition("/")
    if not provider or not model:
        hint = "for example anthropic/MODEL, or the name of a provider in kforge.toml and one of its models"
        raise UsageError(f"a language model is named PROVIDER/MODEL, not {name!r}", hint=hint)
    path = find_file(settings)
    tables = _read(path)
    builtin, table = BUILTIN.get(provider), tables.get(provider)
    if builtin is None and table is None:
        known = sorted({*BUILTIN, *tables})
        near = difflib.get_close_matches(provider, known, n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        where = f"in {path}" if path else f"in {settings.config_dir / FILE_NAME}"
        hint += f"known: {', '.join(known)}; others are tables [llm.providers.NAME] {where}"
        raise NotFound(f"no provider {provider!r} of language models", hint=hint)
    return _merge(provider, model, builtin, table)


def key_variables(settings: Settings) -> dict[str, str]:
    """Every known provider with the variable of its key, "" if it needs none. Raises as `configure`."""
    found = {name: builtin.api_key_env for name, builtin in BUILTIN.items()}
    for name, table in _read(find_file(settings)).items():
        if table.api_key_env is not None or name not in found:
            found[name] = table.api_key_env or ""
    return found


def find_file(settings: Settings) -> Path | None:
    """KFORGE_LLM_CONFIG, else ./kforge.toml if it speaks of language models, else the user's.

    Raises:
        UsageError: the file that was named does not exist, or one cannot be read.
    """
    if settings.llm_config:
        named = Path(settings.llm_config)
        if not named.is_file():
            raise UsageError(f"KFORGE_LLM_CONFIG names {named}, which is no file", hint="correct or unset it")
        return named
    here, users = Path(FILE_NAME), settings.config_dir / FILE_NAME
    if here.is_file() and "llm" in load_toml(here):
        return here
    return users if users.is_file() else None


def load_toml(path: Path) -> dict[str, Any]:
    """The file as it is.

    Raises:
        UsageError: it cannot be read, or is no TOML.
    """
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        # What tomllib says names a line and a character, never a value.
        raise UsageError(f"{path} cannot be read: {error}", hint="see docs/llm.md for its form") from None


def _read(path: Path | None) -> dict[str, ProviderTable]:
    if path is None:
        return {}
    try:
        from kernelforge.generate.llm.config_file import read_providers
    except ImportError as error:
        raise EnvironmentMissing(f"{path} cannot be read without {error.name}", hint=INSTALL) from None
    # A file that came with somebody's repository may not send this user's keys to an address of its choice.
    return read_providers(path, builtin=BUILTIN, trusted=path != Path(FILE_NAME))


def _merge(provider: str, model: str, builtin: Builtin | None, table: ProviderTable | None) -> ModelConfig:
    from_table = table.model_dump(exclude={"models"}, exclude_none=True) if table else {}
    own: ModelTable | None = table.models.get(model) if table else None
    protocol: Protocol = builtin.protocol if builtin else from_table["protocol"]
    limit = own.max_output_tokens if own and own.max_output_tokens else DEFAULT_MAX_OUTPUT_TOKENS
    return ModelConfig(
        provider=provider,
        model=model,
        protocol=protocol,
        base_url=from_table.get("base_url", builtin.base_url if builtin else ""),
        official=builtin is not None,
        api_key_env=from_table.get("api_key_env", builtin.api_key_env if builtin else ""),
        timeout_s=from_table.get("timeout_s", DEFAULT_TIMEOUT_S),
        max_retries=from_table.get("max_retries", DEFAULT_MAX_RETRIES),
        requests_per_minute=from_table.get("requests_per_minute", 0.0),
        concurrency=from_table.get("concurrency", DEFAULT_CONCURRENCY),
        # Anthropic asks for it, because a long reply else leaves a connection silent for minutes. With OpenAI some
        # models stream for verified organisations only.
        stream=from_table.get("stream", protocol == "anthropic"),
        max_output_tokens=limit,
        context_tokens=(own.context_tokens or 0) if own else 0,
        price=own.known_price() if own else None,
        price_list=from_table.get("price_list", provider if builtin else ""),
        temperature=own.temperature if own else None,
        thinking=own.thinking if own else None,
    )
