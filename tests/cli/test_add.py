"""`kforge add` on a stand-in for the verbs: what it refuses, exit codes, tables."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kernelforge.audit.types import TORCH_TIER
from kernelforge.benchmark.types import Interval
from kernelforge.report.asking import TellReport, ToldRow

RIGHT = ToldRow(
    path="a.cpp", label="relu-1", number=3, outcome="accepted", audit="generated", candidate_us=4.0,
    speedup=Interval(median=2.0, low=1.9, high=2.1), first="likely limiter: bandwidth",
)  # fmt: skip
WRONG = ToldRow(path="b.cpp", label="relu-1", number=4, outcome="rejected", reason="wrong_value", first="off by 1")
BROKEN = ToldRow(path="c.cpp", label="relu-1", number=5, outcome="build_failure", reason="compile_error")
TAMPER = ToldRow(path="d.cpp", label="relu-1", number=6, outcome="rejected", reason="tamper")
FAULT = ToldRow(path="e.cpp", label="relu-1", number=7, outcome="worker_failure")
TORCH = ToldRow(path="f.cpp", label="relu-1", number=8, outcome="accepted", audit="torch")
BACKEND = ToldRow(path="g.cpp", label="relu-1", number=9, outcome="accepted", audit="backend")
LEFT_OUT = ToldRow(path="h.cpp", label="conv2d", why="the model does not call conv2d")


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "p.kforge").mkdir()
    return tmp_path


@pytest.fixture
def adds(place: Path, fake_verbs: Callable[..., None]) -> Callable[..., list[dict[str, Any]]]:
    def install(*rows: ToldRow, left: int = 0) -> list[dict[str, Any]]:
        seen: list[dict[str, Any]] = []

        def verb(project: Path, what: object, *, on_event: Callable[[str], None], **options: Any) -> TellReport:
            seen.append({"project": project, "what": what, **options})
            for number, row in enumerate(rows, 1):
                on_event(f"[{number}/{len(rows)}]  {row.line}")
            return TellReport(rows=rows, left=left)

        fake_verbs(add_files=verb, add_folder=verb)
        return seen

    return install


@pytest.mark.parametrize(
    ("rows", "code"),
    [
        ([RIGHT], 0), ([TORCH], 0), ([RIGHT, LEFT_OUT], 0), ([RIGHT, WRONG, BROKEN], 4), ([BROKEN, WRONG], 5),
        ([TAMPER], 7), ([BACKEND], 7), ([FAULT], 1),
    ],
)  # fmt: skip
def test_exit_codes_are_those_of_eval(kforge: Any, adds: Any, rows: list[ToldRow], code: int) -> None:
    adds(*rows)
    assert kforge("add", "a.cpp", "-V", "relu", "-p", "p.kforge").code == code


@pytest.mark.parametrize(
    ("rows", "code"), [([WRONG, RIGHT], 0), ([WRONG, BROKEN], 4), ([LEFT_OUT], 0), ([BACKEND, TORCH], 0)]
)
def test_of_a_folder_one_accepted_kernel_is_enough(kforge: Any, adds: Any, rows: list[ToldRow], code: int) -> None:
    seen = adds(*rows)
    assert kforge("add", "--from", "orig", "-p", "p.kforge").code == code
    assert (seen[0]["what"], seen[0]["judge"]) == (Path("orig"), True)


def test_the_options_arrive(kforge: Any, adds: Any) -> None:
    seen = adds(RIGHT)
    ran = kforge(
        "add", "a.cpp", "b.cu", "-V", "relu", "--parent", "2", "--notes", "new", "--no-judge", "-p", "p.kforge"
    )  # fmt: skip
    assert ran.code == 0
    call = seen[0]
    assert call["what"] == [Path("a.cpp"), Path("b.cu")]
    assert (call["variant"], call["parent"], call["notes"], call["judge"]) == ("relu", "2", "new", False)


def test_what_is_shown(kforge: Any, adds: Any) -> None:
    adds(RIGHT, TORCH, LEFT_OUT, left=2)
    ran = kforge("add", "a.cpp", "-V", "relu", "-p", "p.kforge")
    lines = ran.stdout.splitlines()
    assert "2.00x" in lines[2] and "accepted" in lines[2] and "accepted, torch ABI" in lines[3]
    assert "not judged" in lines[4] and "the model does not call conv2d" in lines[4]
    assert lines[5:] == [TORCH_TIER, "2 kernels not judged: it was stopped; the next search judges them first"]
    assert "[1/3]  relu-1  #3  2.00x" in ran.stderr
    assert "next: kforge tree relu-1" in ran.stderr
    document = json.loads(kforge("add", "a.cpp", "-V", "relu", "-p", "p.kforge", "--json").stdout)
    assert [v["audit"] for v in document["verdicts"]] == ["generated", "torch", ""]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "name at least one file"),
        (("a.cpp",), "which variant is a.cpp for?"),
        (("a.txt", "-V", "relu"), "is no kernel source"),
        (("a.cpp", "--from", "orig"), "--from takes no files"),
        (("--from", "orig", "--parent", "1"), "--from takes no files"),
    ],
)
def test_what_does_not_go_together_is_refused(kforge: Any, adds: Any, arguments: tuple[str, ...], words: str) -> None:
    seen = adds(RIGHT)
    ran = kforge("add", *arguments, "-p", "p.kforge")
    assert ran.code == 2 and words in ran.stderr and not seen
