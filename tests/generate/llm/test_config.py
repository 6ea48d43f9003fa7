"""Providers and models come from files, keys from the environment, and nothing from a name."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from kernelforge.errors import ForgeError, NotFound, UsageError
from kernelforge.generate.llm.config import FREE, Price, configure, find_file, key_variables
from kernelforge.settings import Settings, load_settings

VLLM = """
[llm.providers.vllm]
protocol = "openai"
base_url = "http://127.0.0.1:8000/v1/"
api_key_env = ""
timeout_s = 30
max_retries = 1
requests_per_minute = 120
concurrency = 2

[llm.providers.vllm.models."Qwen/Qwen3-Coder"]
max_output_tokens = 4096
context_tokens = 32768
free = true
temperature = 0.7
thinking = false
"""


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """In an empty folder, of a user without files."""
    monkeypatch.chdir(tmp_path)
    return load_settings({"KFORGE_CONFIG_DIR": str(tmp_path / "user")})


def write(tmp_path: Path, text: str) -> Settings:
    path = tmp_path / "named.toml"
    path.write_text(text)
    return load_settings({"KFORGE_CONFIG_DIR": str(tmp_path / "user"), "KFORGE_LLM_CONFIG": str(path)})


@pytest.mark.parametrize(
    ("name", "protocol", "variable", "stream"),
    [
        ("anthropic/claude-x", "anthropic", "ANTHROPIC_API_KEY", True),
        ("openai/gpt-x", "openai", "OPENAI_API_KEY", False),
        ("google/gemini-x", "google", "GEMINI_API_KEY", False),
        # what a model is called decides nothing
        ("openai/claude-x", "openai", "OPENAI_API_KEY", False),
    ],
)
def test_three_providers_need_no_file(
    settings: Settings, name: str, protocol: str, variable: str, stream: bool
) -> None:
    found = configure(name, settings)
    assert (found.name, found.protocol, found.api_key_env, found.stream) == (name, protocol, variable, stream)
    assert found.official
    assert found.base_url.startswith("https://")
    assert found.price_list == found.provider


def test_a_table_says_all_of_a_model(tmp_path: Path) -> None:
    found = configure("vllm/Qwen/Qwen3-Coder", write(tmp_path, VLLM))
    assert (found.provider, found.model, found.base_url) == ("vllm", "Qwen/Qwen3-Coder", "http://127.0.0.1:8000/v1")
    assert (found.timeout_s, found.max_retries, found.requests_per_minute, found.concurrency) == (30, 1, 120, 2)
    assert (found.max_output_tokens, found.context_tokens, found.price) == (4096, 32768, FREE)
    assert (found.temperature, found.thinking, found.official, found.price_list) == (0.7, False, False, "")
    # A model without a table has the defaults, and no price.
    other = configure("vllm/other", write(tmp_path, VLLM))
    assert (other.price, other.context_tokens, other.temperature) == (None, 0, None)


@pytest.mark.parametrize(
    ("price", "expected"),
    [
        ("free = true", FREE),
        ("price = 0", FREE),
        ("price = { input = 1, output = 2 }", Price(input=1, output=2, cache_read=1, cache_write=1)),
        (
            "price = { input = 1, output = 2, cache_read = 0, cache_write = 3 }",
            Price(input=1, output=2, cache_read=0, cache_write=3),
        ),
        ("", None),
    ],
)
def test_prices(tmp_path: Path, price: str, expected: Price | None) -> None:
    found = configure("openai/m", write(tmp_path, f"[llm.providers.openai.models.m]\n{price}\n"))
    assert found.price == expected


def test_a_builtin_provider_keeps_what_its_table_does_not_say(tmp_path: Path) -> None:
    text = '[llm.providers.anthropic]\nbase_url = "https://proxy.example"\napi_key_env = "PROXY_KEY"\n'
    found = configure("anthropic/m", write(tmp_path, text))
    assert (found.base_url, found.api_key_env, found.protocol) == ("https://proxy.example", "PROXY_KEY", "anthropic")
    assert (found.official, found.price_list, found.stream) == (True, "anthropic", True)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (VLLM.replace("timeout_s", "timeout"), "did you mean timeout_s"),
        (VLLM.replace("context_tokens", "context_token"), "did you mean context_tokens"),
        ("[llm.provider.x]\n", "did you mean providers"),
        (VLLM.replace('api_key_env = ""\n', ""), "lacks api_key_env"),
        (VLLM.replace('protocol = "openai"', 'protocol = "grpc"'), "protocol"),
        (VLLM.replace('protocol = "openai"\n', ""), "lacks protocol"),
        (VLLM.replace("concurrency = 2", "concurrency = 0"), "concurrency"),
        (VLLM.replace("timeout_s = 30", "timeout_s = nan"), "timeout_s"),
        (VLLM.replace("http://", "ftp://"), "http://"),
        (VLLM.replace("free = true", "free = true\nprice = { input = 1, output = 1 }"), "both free and price"),
        (VLLM.replace("free = true", "price = { input = -1, output = 1 }"), "input"),
        (VLLM.replace("= 32768", "= 4096"), "leaves nothing"),
        (VLLM.replace("thinking = false", 'thinking = "hard"'), "thinking"),
        ('[llm.providers.openai]\nprotocol = "google"\n', "is built in and speaks openai"),
        ('[llm.providers."a/b"]\nprotocol = "google"\n', "before a slash"),
        ("[llm\n", "cannot be read"),
    ],
)
def test_mistakes_are_told(tmp_path: Path, text: str, expected: str) -> None:
    with pytest.raises(UsageError, match=expected) as caught:
        configure("vllm/m", write(tmp_path, text))
    assert "named.toml" in caught.value.message
    assert caught.value.hint


@pytest.mark.parametrize(
    "text",
    [
        VLLM.replace('api_key_env = ""', 'api_key = "hunter2-hunter2"'),
        VLLM.replace('api_key_env = ""', 'api_key_env = "hunter2-hunter2"'),
        VLLM.replace("free = true", 'token = "hunter2-hunter2"'),
        VLLM.replace("http://", "http://me:hunter2-hunter2@"),
        VLLM.replace("/v1/", "/v1?key=hunter2-hunter2"),
        VLLM.replace("timeout_s = 30", 'timeout_s = "hunter2-hunter2"'),
        VLLM.replace('protocol = "openai"', 'protocol = "hunter2-hunter2"'),
        "[llm]\nsecret = 'hunter2-hunter2'\n",
    ],
)
def test_a_key_in_a_file_is_refused_and_not_repeated(tmp_path: Path, text: str) -> None:
    assert "hunter2" in text
    with pytest.raises(UsageError) as caught:
        configure("vllm/m", write(tmp_path, text))
    assert "hunter2" not in str(caught.value)
    assert caught.value.__cause__ is None


def test_a_model_may_be_called_like_a_field_of_a_key(tmp_path: Path) -> None:
    text = VLLM + "\n[llm.providers.vllm.models.token]\nfree = true\n"
    assert configure("vllm/token", write(tmp_path, text)).price == FREE


def test_which_file_is_read(tmp_path: Path, settings: Settings) -> None:
    assert find_file(settings) is None
    settings.config_dir.mkdir()
    users = settings.config_dir / "kforge.toml"
    users.write_text(VLLM)
    assert find_file(settings) == users
    here = tmp_path / "kforge.toml"
    here.write_text("[other]\n")
    assert find_file(settings) == users
    here.write_text("[llm]\n")
    assert find_file(settings) == Path("kforge.toml")
    named = tmp_path / "named.toml"
    named.write_text(VLLM)
    assert find_file(replace(settings, llm_config=str(named))) == named
    with pytest.raises(UsageError, match="KFORGE_LLM_CONFIG"):
        find_file(replace(settings, llm_config=str(tmp_path / "none.toml")))


def test_a_file_of_the_working_folder_sends_no_key_where_it_likes(tmp_path: Path, settings: Settings) -> None:
    here = tmp_path / "kforge.toml"
    for text in (
        '[llm.providers.anthropic]\nbase_url = "https://evil.example"\n',
        '[llm.providers.x]\nprotocol = "openai"\nbase_url = "https://evil.example"\napi_key_env = "AWS_SECRET_KEY"\n',
    ):
        here.write_text(text)
        with pytest.raises(UsageError, match="would send a key"):
            configure("anthropic/m", settings)
        # Where the user has named it, it may.
        assert configure("anthropic/m", replace(settings, llm_config=str(here))).model == "m"
    here.write_text(VLLM.replace("127.0.0.1", "gpu-box") + "\n[llm.providers.openai]\ntimeout_s = 5\n")
    assert configure("vllm/m", settings).base_url == "http://gpu-box:8000/v1"
    assert configure("openai/m", settings).timeout_s == 5


@pytest.mark.parametrize(
    "text", ['models.m.free = true', 'models.m.price = { input = 0.01, output = 0.01 }', 'price_list = "openai"'],
)  # fmt: skip
def test_a_file_of_the_working_folder_sets_no_prices_of_a_builtin_provider(
    tmp_path: Path, settings: Settings, text: str
) -> None:
    """A budget in dollars would limit nothing."""
    (tmp_path / "kforge.toml").write_text(f"[llm.providers.anthropic]\n{text}\n")
    with pytest.raises(UsageError, match="would set prices"):
        configure("anthropic/m", settings)
    assert configure("anthropic/m", replace(settings, llm_config=str(tmp_path / "kforge.toml"))).name == "anthropic/m"
    # What is on this machine, and not built in, is its own.
    (tmp_path / "kforge.toml").write_text(VLLM)
    assert configure("vllm/Qwen/Qwen3-Coder", settings).price == FREE


@pytest.mark.parametrize("number", ["inf", "nan", "-inf", "-1", "1e7", "1e308"])
@pytest.mark.parametrize("field", ["input", "output", "cache_read", "cache_write"])
def test_prices_that_cannot_be_are_refused(tmp_path: Path, field: str, number: str) -> None:
    numbers = {"input": "1", "output": "1", field: number}
    inner = ", ".join(f"{name} = {value}" for name, value in numbers.items())
    with pytest.raises(UsageError, match=field):
        configure("openai/m", write(tmp_path, f"[llm.providers.openai.models.m]\nprice = {{ {inner} }}\n"))


@pytest.mark.parametrize("name", ["claude-x", "", "/m", "anthropic/"])
def test_a_name_has_a_provider_and_a_model(settings: Settings, name: str) -> None:
    with pytest.raises(UsageError, match="PROVIDER/MODEL"):
        configure(name, settings)


def test_an_unknown_provider_is_told_with_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(NotFound) as caught:
        configure("vlm/m", write(tmp_path, VLLM))
    assert "did you mean vllm" in caught.value.hint
    assert "anthropic, google, openai, vllm" in caught.value.hint
    with pytest.raises(ForgeError):
        # No guessing: it is a provider, and nothing says where it is.
        configure("ollama/qwen3", write(tmp_path, VLLM))


def test_the_variables_of_keys(tmp_path: Path, settings: Settings) -> None:
    builtin = {"anthropic": "ANTHROPIC_API_KEY", "google": "GEMINI_API_KEY", "openai": "OPENAI_API_KEY"}
    assert key_variables(settings) == builtin
    text = VLLM + '\n[llm.providers.openai]\napi_key_env = "WORK_KEY"\n[llm.providers.google]\ntimeout_s = 1\n'
    assert key_variables(write(tmp_path, text)) == {**builtin, "openai": "WORK_KEY", "vllm": ""}
