"""What `doctor` says of keys: whether they are there, and nothing of what they are."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernelforge.doctor import check_language_models
from kernelforge.settings import load_settings


def test_keys_are_named_and_not_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ANTHROPIC_API_KEY", "hunter2-hunter2")
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    (tmp_path / "kforge.toml").write_text(
        '[llm.providers.ollama]\nprotocol = "openai"\nbase_url = "http://127.0.0.1:11434/v1"\napi_key_env = ""\n'
    )
    line = check_language_models(load_settings({"KFORGE_CONFIG_DIR": str(tmp_path)}))
    assert line.status == "ok"
    assert "ANTHROPIC_API_KEY is set" in line.detail
    assert "OPENAI_API_KEY is not set" in line.detail
    assert "ollama: needs no key" in line.detail
    assert "hunter2" not in line.detail


def test_a_broken_file_is_a_warning_with_a_fix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "kforge.toml").write_text("[llm.provider]\n")
    line = check_language_models(load_settings({"KFORGE_CONFIG_DIR": str(tmp_path)}))
    assert line.status == "warn"
    assert "did you mean providers" in line.detail
    assert line.fix
