"""What a user gets wrong, through the real verbs: the right exit code, one message, and nothing half-written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

RAISES = """
import torch
class Model(torch.nn.Module):
    def forward(self, x):
        raise ValueError("boom")
def get_inputs():
    return [torch.zeros(2)]
def get_init_inputs():
    return []
"""


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_model_file_that_does_not_exist(kforge: Any) -> None:
    ran = kforge("capture", "no/such.py")
    assert (ran.code, ran.stdout) == (3, "")
    assert "no/such.py" in ran.stderr


def test_model_file_without_a_model(kforge: Any, tmp_path: Path) -> None:
    (tmp_path / "empty.py").write_text("x = 1\n")
    ran = kforge("capture", "empty.py")
    assert ran.code == 3
    assert "Model" in ran.stderr


def test_model_that_raises_leaves_no_project(kforge: Any, tmp_path: Path) -> None:
    (tmp_path / "raises.py").write_text(RAISES)
    ran = kforge("capture", "raises.py", "-o", "raises.kforge")
    assert ran.code == 3
    assert "boom" in ran.stderr
    assert "Traceback" not in ran.stderr
    assert [p.name for p in tmp_path.iterdir() if p.suffix != ".py" and p.name != "__pycache__"] == []


def test_vv_shows_where_the_model_raised(kforge: Any, tmp_path: Path) -> None:
    (tmp_path / "raises.py").write_text(RAISES)
    ran = kforge("capture", "raises.py", "-vv")
    assert 'raise ValueError("boom")' in ran.stderr


def test_cuda_without_a_gpu(kforge: Any, tmp_path: Path) -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    (tmp_path / "raises.py").write_text(RAISES)
    assert kforge("capture", "raises.py", "--device", "cuda").code == 6


@pytest.mark.parametrize(
    "command",
    [
        ("ops", "x.kforge"), ("op", "show", "abcd", "-p", "x.kforge"), ("forge", "x.kforge"), ("export", "x.kforge"),
        ("eval", "k.cpp", "-p", "x.kforge", "--variant", "abcd"), ("cast", "inspect", "x.cast"),
        ("audit", "abcd", "-p", "x.kforge"), ("op", "show", "abcd", "-p", "x.kforge", "--trial", "1"),
        ("cast", "verify", "x.cast"),
    ],
    ids=" ".join,
)  # fmt: skip
def test_project_or_package_that_does_not_exist(kforge: Any, command: tuple[str, ...]) -> None:
    ran = kforge(*command)
    assert (ran.code, ran.stdout) == (3, "")
    assert "hint: " in ran.stderr


def test_a_project_is_no_package(kforge: Any, tmp_path: Path) -> None:
    (tmp_path / "x.kforge").mkdir()
    (tmp_path / "x.kforge" / "nodes.db").touch()
    ran = kforge("cast", "inspect", "x.kforge")
    assert ran.code == 3
    assert ran.stderr.splitlines()[:2] == [
        "error: x.kforge is a project, not a package", "hint: export it first: kforge export x.kforge -o x.cast",
    ]  # fmt: skip
    (tmp_path / "folder").mkdir()
    assert "folder is a folder, not a package" in kforge("cast", "verify", "folder").stderr


def test_a_model_s_file_without_its_ending_is_suggested(kforge: Any, tmp_path: Path) -> None:
    (tmp_path / "tiny.py").write_text(RAISES)
    ran = kforge("capture", "tiny")
    assert ran.code == 3
    assert "hint: did you mean tiny.py?" in ran.stderr


@pytest.mark.parametrize("options", [(), ("--random-weights",)], ids=["trained", "random"])
def test_a_configuration_that_does_not_exist_comes_first(kforge: Any, options: tuple[str, ...]) -> None:
    ran = kforge("capture", "transformers:none.json", *options)
    assert ran.code == 3
    assert ran.stderr.startswith("error: configuration file none.json does not exist\n")


def test_a_file_that_is_no_package(kforge: Any, tmp_path: Path) -> None:
    (tmp_path / "x.cast").write_bytes(b"PK\x03\x04 not really")
    assert kforge("cast", "verify", "x.cast").code == 3
