"""Errors: one message, one hint, the right exit code, nothing on stdout."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kernelforge.errors import DeviceBusy, EnvironmentMissing, ForgeError, NotFound, PackageError, UsageError
from kernelforge.report.rows import ForgeReport


def raiser(error: Exception) -> Callable[..., object]:
    def verb(*_args: object, **_kwargs: object) -> object:
        raise error

    return verb


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (UsageError("off"), 2), (NotFound("gone"), 3), (PackageError("torn"), 3), (EnvironmentMissing("no g++"), 6),
        (DeviceBusy("busy"), 75), (ForgeError("odd"), 1),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else str(value),
)  # fmt: skip
def test_our_errors_become_exit_codes(kforge: Any, fake_verbs: Any, error: ForgeError, code: int) -> None:
    fake_verbs(list_operators=raiser(error))
    ran = kforge("ops", "x.kforge")
    assert (ran.code, ran.stdout) == (code, "")
    assert ran.stderr.strip() == f"error: {error.message}"


def test_hint_is_a_line_of_its_own_and_there_is_no_traceback(kforge: Any, fake_verbs: Any) -> None:
    fake_verbs(list_operators=raiser(NotFound("no project x.kforge", hint="kforge capture MODEL -o x.kforge")))
    ran = kforge("ops", "x.kforge", "--json")
    assert ran.stdout == ""
    assert ran.stderr.splitlines() == ["error: no project x.kforge", "hint: kforge capture MODEL -o x.kforge"]


def test_vv_shows_the_traceback(kforge: Any, fake_verbs: Any) -> None:
    fake_verbs(list_operators=raiser(NotFound("gone")))
    ran = kforge("ops", "x.kforge", "-vv")
    assert ran.code == 3
    assert "Traceback" in ran.stderr
    assert ran.stderr.strip().endswith("error: gone")


@pytest.mark.parametrize("text", ["3x", "", "-5s", "0", "soon", "1h30"])
def test_a_time_that_is_none_is_a_usage_error(kforge: Any, text: str) -> None:
    ran = kforge("forge", "x.kforge", "--max-time", text)
    assert ran.code == 2
    assert "--max-time" in ran.stderr
    assert '"3m"' in ran.stderr


def test_a_misspelt_command_gets_a_suggestion(kforge: Any) -> None:
    ran = kforge("exprt")
    assert ran.code == 2
    assert "'export'" in ran.stderr


def test_no_project_here_is_a_usage_error(kforge: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    ran = kforge("op", "show", "abcd")
    assert ran.code == 2
    assert "which project?" in ran.stderr


def test_the_only_project_here_is_meant(
    kforge: Any, fake_verbs: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "resnet.kforge").mkdir()
    monkeypatch.chdir(tmp_path)
    seen: list[Path] = []

    def list_operators(project: Path) -> list[object]:
        seen.append(project)
        return []

    fake_verbs(list_operators=list_operators)
    assert kforge("ops").code == 0
    assert seen == [Path("resnet.kforge")]
    (tmp_path / "other.kforge").mkdir()
    assert kforge("ops").code == 2


@pytest.mark.parametrize("pick", ["abc", "=node", "variant="])
def test_a_pick_that_is_none_is_a_usage_error(kforge: Any, fake_verbs: Any, pick: str) -> None:
    fake_verbs(export_project=raiser(AssertionError("must not be reached")))
    ran = kforge("export", "x.kforge", "--pick", pick)
    assert ran.code == 2
    assert "VARIANT=NODE" in ran.stderr


def test_two_picks_for_one_variant_are_a_usage_error(kforge: Any, fake_verbs: Any) -> None:
    fake_verbs(export_project=raiser(AssertionError("must not be reached")))
    assert kforge("export", "x.kforge", "--pick", "a=1", "--pick", "a=2").code == 2


def test_an_error_that_is_not_ours_keeps_its_traceback(kforge: Any, fake_verbs: Any) -> None:
    fake_verbs(list_operators=raiser(ZeroDivisionError("a fault")))
    with pytest.raises(ZeroDivisionError):
        kforge("ops", "x.kforge")


@pytest.mark.parametrize("file", ["notes.txt", "kernel", "kernel.py", "kernel.c", ".cpp"])
def test_eval_of_what_is_no_kernel_by_its_name_is_a_usage_error(kforge: Any, fake_verbs: Any, file: str) -> None:
    fake_verbs(evaluate_file=raiser(AssertionError("must not be reached")))
    ran = kforge("eval", file, "-p", "x.kforge", "-V", "gelu")
    assert (ran.code, ran.stdout) == (2, "")
    assert ".cpp, .cc, .cxx or .cu" in ran.stderr


@pytest.mark.parametrize("file", ["k.cpp", "k.cc", "k.cxx", "k.cu"])
def test_eval_takes_the_usual_names(kforge: Any, fake_verbs: Any, file: str) -> None:
    fake_verbs(evaluate_file=raiser(NotFound("reached")))
    assert kforge("eval", file, "-p", "x.kforge", "-V", "gelu").stderr.startswith("error: reached")


@pytest.fixture
def forged(fake_verbs: Any) -> list[tuple[Path, tuple[str, ...]]]:
    """What `kforge forge` was asked for: (project, operators) of each call."""
    seen: list[tuple[Path, tuple[str, ...]]] = []

    def forge_project(project: Path, *, operators: tuple[str, ...], **_options: object) -> ForgeReport:
        seen.append((project, operators))
        return ForgeReport(rows=(), trials=0, seconds=0.0, stopped="exhausted")

    fake_verbs(forge_project=forge_project)
    return seen


def test_forge_takes_an_operator_without_the_only_project_here(
    kforge: Any, forged: list[Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    only = Path("resnet.kforge")
    only.mkdir()
    (tmp_path / "folder").mkdir()
    for words, wanted in (
        (("layer_norm", "--trials", "2"), (only, ("layer_norm",))),
        (("layer_norm", "gelu"), (only, ("layer_norm", "gelu"))),
        (("resnet.kforge", "gelu"), (only, ("gelu",))),
        ((), (only, ())),
        (("gone.kforge", "gelu"), (Path("gone.kforge"), ("gelu",))),  # misspelt, and to be called so
        (("elsewhere/project", "gelu"), (Path("elsewhere/project"), ("gelu",))),
        (("folder", "gelu"), (Path("folder"), ("gelu",))),
    ):
        kforge("forge", *words)
        assert forged[-1] == wanted
    (tmp_path / "other.kforge").mkdir()
    kforge("forge", "layer_norm")
    assert forged[-1] == (Path("layer_norm"), ()), "which of two is meant, nobody said"
