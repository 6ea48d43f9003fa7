"""Errors: one message, one hint, the right exit code, nothing on stdout."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kernelforge.errors import DeviceBusy, EnvironmentMissing, ForgeError, NotFound, PackageError, UsageError
from kernelforge.report.rows import ForgeReport, OperatorRow, TrialRow
from kernelforge.report.trees import DiffReport, TreeReport, TreeRow


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
    ran = kforge("ops", "x.kforge")
    assert ran.stdout == ""
    assert ran.stderr.splitlines() == ["error: no project x.kforge", "hint: kforge capture MODEL -o x.kforge"]


def test_under_json_an_error_is_a_document_too(kforge: Any, fake_verbs: Any) -> None:
    fake_verbs(list_operators=raiser(NotFound("no project x.kforge", hint="capture one")))
    ran = kforge("ops", "x.kforge", "--json")
    assert ran.code == 3
    assert json.loads(ran.stdout) == {
        "error": {"kind": "NotFound", "message": "no project x.kforge", "hint": "capture one", "exit_code": 3}
    }
    assert ran.stderr.splitlines()[0] == "error: no project x.kforge"


def test_under_json_a_bad_option_is_a_document_too(kforge: Any) -> None:
    ran = kforge("forge", "x.kforge", "--json", "--max-time", "soon")
    error = json.loads(ran.stdout)["error"]
    assert (ran.code, error["kind"], error["exit_code"]) == (2, "UsageError", 2)
    assert "--max-time" in error["message"]
    assert "--max-time" in ran.stderr
    assert kforge("forge", "x.kforge", "--max-time", "soon").stdout == ""


@pytest.mark.parametrize(("options", "wanted"), [((), ["note: the machine was busy"]), (("-q",), [])])
def test_a_warning_of_the_log_is_a_note(
    kforge: Any, fake_verbs: Any, options: tuple[str, ...], wanted: list[str]
) -> None:
    def list_operators(_project: Path) -> list[object]:
        logging.getLogger("kernelforge.evaluate.judge").warning("the machine %s", "was busy")
        logging.getLogger("kernelforge.evaluate.judge").info("a detail")
        raise NotFound("gone")

    fake_verbs(list_operators=list_operators)
    assert kforge("ops", "x.kforge", *options).stderr.splitlines() == [*wanted, "error: gone"]
    lines = kforge("ops", "x.kforge", *options, "-v").stderr.splitlines()
    assert lines[:2] == [
        "WARNING kernelforge.evaluate.judge: the machine was busy", "INFO kernelforge.evaluate.judge: a detail",
    ]  # fmt: skip


ROW = OperatorRow(
    variant="5a" * 32, label="layer_norm-5a5a5a5a", operator="layer_norm", calls=1, share=0.1, eager_us=1.0,
    packaged="layer_norm-16346052", trials=1,
)  # fmt: skip
OTHER = replace(ROW, variant="6b" * 32, label="gelu-6b6b6b6b", operator="gelu", packaged="")


@pytest.fixture
def named(fake_verbs: Any) -> list[object]:
    """Which variants commands asked for; only the captured ones are known."""
    seen: list[object] = []

    def verb(*args: object, **options: Any) -> object:
        name = next((a for a in args if isinstance(a, str) and a), options.get("variant", ""))
        names = options.get("operators", options.get("picks", (name,)))
        seen.append(dict(names) if isinstance(names, dict) else tuple(names))
        if any(n not in {ROW.label, OTHER.label} for n in names):
            raise NotFound(f"no variant is called {names!r}", hint="variants: layer_norm-5a5a5a5a")
        raise NotFound("reached")

    commands = (
        "show_variant", "show_trial", "variant_tree", "diff_trials", "evaluate_file", "forge_project", "export_project",
    )  # fmt: skip
    fake_verbs(list_operators=lambda _project: [ROW, OTHER], **dict.fromkeys(commands, verb))
    return seen


@pytest.mark.parametrize(
    "words",
    [
        ("op", "show", "NAME"), ("op", "show", "NAME", "--trial", "3"), ("tree", "NAME"), ("diff", "3", "-V", "NAME"),
        ("eval", "k.cpp", "-V", "NAME"), ("forge", "x.kforge", "gelu-6b6b6b6b", "NAME"),
        ("export", "x.kforge", "--pick", "NAME=3"),
    ],
    ids=lambda words: " ".join(words[:2]),
)  # fmt: skip
def test_a_name_from_a_package_means_the_captured_variant(
    kforge: Any, named: list[object], words: tuple[str, ...]
) -> None:
    project = () if "x.kforge" in words else ("-p", "x.kforge")
    ran = kforge(*(w.replace("NAME", "layer_norm-16346052") for w in words), *project)
    assert ran.stderr.splitlines()[0] == "error: reached"
    assert "layer_norm-5a5a5a5a" in str(named[-1]) and "16346052" not in str(named[-1])
    misspelt = kforge(*(w.replace("NAME", "layernorm-5a5a5a5a") for w in words), *project)
    assert misspelt.stderr.splitlines()[:2] == [
        "error: no variant is called 'layernorm-5a5a5a5a'",
        "hint: did you mean layer_norm-5a5a5a5a? variants: layer_norm-5a5a5a5a",
    ]


def test_a_misspelt_operator_gets_a_suggestion(kforge: Any, named: list[object]) -> None:
    assert "did you mean gelu?" in kforge("op", "show", "gellu", "-p", "x.kforge").stderr
    assert "did you mean" not in kforge("op", "show", "zzzz", "-p", "x.kforge").stderr
    assert len(named) == 2


def test_diff_needs_no_variant_for_the_id_of_a_node(kforge: Any, fake_verbs: Any) -> None:
    def tree(_project: Path, variant: str) -> TreeReport:
        trial = TrialRow(node=("ab" if variant == ROW.variant else "cd") * 32, number=3, outcome="accepted")
        return TreeReport(variant=variant, label="", rows=(TreeRow(branch="", trial=trial),))

    seen: list[tuple[object, ...]] = []

    def diff_trials(*args: object) -> DiffReport:
        seen.append(args[1:])
        return DiffReport(label="", old=1, new=3, text="+x\n")

    fake_verbs(list_operators=lambda _project: [ROW, OTHER], variant_tree=tree, diff_trials=diff_trials)
    assert kforge("diff", "cdcd", "-p", "x.kforge").stdout == "+x\n"
    assert kforge("diff", "1", "ABAB", "-p", "x.kforge").code == 0
    assert seen == [(OTHER.label, "cdcd", ""), (ROW.label, "1", "ABAB")]
    only_number = kforge("diff", "3", "-p", "x.kforge")
    assert (only_number.code, "which variant's node 3?" in only_number.stderr) == (2, True)
    assert kforge("diff", "eeee", "-p", "x.kforge").code == 3


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


@pytest.mark.parametrize(
    ("command", "typed"),
    [
        (("op", "show", "abcd"), "-p NAME.kforge"), (("tree", "abcd"), "-p NAME.kforge"),
        (("diff", "1"), "-p NAME.kforge"), (("log", "1"), "-p NAME.kforge"), (("audit", "1"), "-p NAME.kforge"),
        (("eval", "k.cpp", "-V", "abcd"), "-p NAME.kforge"), (("runs", "attach"), "-p NAME.kforge"),
        (("ops",), "NAME.kforge"), (("forge",), "NAME.kforge"), (("export",), "NAME.kforge"),
        (("project", "pack"), "NAME.kforge"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)  # fmt: skip
def test_the_hint_names_the_project_as_the_command_takes_it(
    kforge: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, command: tuple[str, ...], typed: str
) -> None:
    monkeypatch.chdir(tmp_path)
    assert f"hint: name its folder: {typed}\n" in kforge(*command).stderr


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--policy", "foo"), "'--policy': 'foo' is not one of 'gain', 'uniform'."),
        (("--trials", "0"), "'--trials': it must be at least 1"),
        (("--trials", "x"), "'--trials': it must be a whole number"),
        (("--budget-usd", "x"), "'--budget-usd': it must be a number"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_a_bad_option_is_told_in_plain_words(kforge: Any, options: tuple[str, ...], words: str) -> None:
    ran = kforge("forge", "x.kforge", *options)
    assert ran.code == 2
    assert ran.stderr.splitlines()[-1] == f"Error: Invalid value for {words}"


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
    assert f"{file} does not exist, and is no kernel source" in ran.stderr
    assert ".cpp, .cc, .cxx or .cu" in ran.stderr


@pytest.mark.parametrize("file", ["k.cpp", "k.cc", "k.cxx", "k.cu"])
def test_eval_takes_the_usual_names(kforge: Any, fake_verbs: Any, file: str) -> None:
    fake_verbs(evaluate_file=raiser(NotFound("reached")), list_operators=lambda _project: [OTHER])
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
