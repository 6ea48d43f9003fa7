"""Runs the command line in this process, and puts a stand-in in the place of `kernelforge.forge`.

The stand-in is for how results and errors are shown; what the real verbs do is tried end to end elsewhere.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType

import pytest
from typer.testing import CliRunner

import kernelforge
from kernelforge.cli.main import make_app


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """What one call of the command line left behind."""

    code: int
    stdout: str
    stderr: str


@pytest.fixture
def kforge() -> Callable[..., Ran]:
    def call(*arguments: str) -> Ran:
        result = CliRunner().invoke(make_app(), list(arguments), prog_name="kforge")
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return Ran(code=result.exit_code, stdout=result.stdout, stderr=result.stderr)

    return call


@pytest.fixture
def fake_verbs(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Installs the given functions as the verbs of `kernelforge.forge`."""

    def install(**verbs: Callable[..., object]) -> None:
        module = ModuleType("kernelforge.forge")
        for name, function in verbs.items():
            setattr(module, name, function)
        monkeypatch.setitem(sys.modules, "kernelforge.forge", module)
        monkeypatch.setattr(kernelforge, "forge", module, raising=False)

    return install
