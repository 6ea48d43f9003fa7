"""Keys are read from the environment, and never become part of what is shown."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernelforge.settings import load_settings, secret


def test_a_key_is_read_when_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_KEY", " abc\n")
    assert secret("SOME_KEY") == "abc"
    assert secret("SOME_KEY", {}) == ""
    assert secret("OTHER", {"OTHER": "x"}) == "x"


def test_settings_hold_no_key() -> None:
    settings = load_settings(
        {"ANTHROPIC_API_KEY": "hunter2", "OPENAI_API_KEY": "hunter2", "KFORGE_LLM_CONFIG": "a.toml"}
    )
    assert "hunter2" not in repr(settings)
    assert settings.llm_config == "a.toml"


def test_what_is_no_name_is_refused_and_not_repeated() -> None:
    with pytest.raises(ValueError, match="name of an environment variable") as caught:
        secret("sk-hunter2")
    assert "hunter2" not in str(caught.value)


def test_the_users_configuration_can_be_elsewhere() -> None:
    assert load_settings({"KFORGE_CONFIG_DIR": "/x"}).config_dir == Path("/x")
    assert load_settings({}).config_dir.name == "kernelforge"
