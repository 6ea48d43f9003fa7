"""The runner's binary: cached, rebuilt never, and clear about a missing compiler."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from kernelforge.errors import EnvironmentMissing
from kernelforge.runner.binary import runner_binary
from kernelforge.settings import Settings, load_settings


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return load_settings({"KFORGE_CACHE_DIR": str(tmp_path / "cache")})


def test_built_once(settings: Settings) -> None:
    first = runner_binary("cpu", settings)
    built = first.stat().st_mtime_ns
    assert runner_binary("cpu", settings) == first and first.stat().st_mtime_ns == built
    assert [p.name for p in first.parent.iterdir() if p.suffix != ".lock"] == [first.name]


def test_missing_compiler_is_named(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(EnvironmentMissing, match="C compiler"):
        runner_binary("cpu", settings)
    with pytest.raises(EnvironmentMissing, match="nvcc"):
        runner_binary("cuda", settings)


def test_cuda_flavour_compiles(settings: Settings) -> None:
    chosen = replace(settings, nvcc=load_settings().nvcc)
    try:
        assert runner_binary("cuda", chosen).stat().st_mode & 0o111
    except EnvironmentMissing:
        if load_settings().strict_tools:
            raise
        pytest.skip("no nvcc")
