"""Every error that a user can run into ends in one clear message, its exit code, and nothing half-written."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

MODEL = """
import torch
class Model(torch.nn.Module):
    def forward(self, x):
        return torch.relu(x)
def get_inputs():
    return [torch.randn(8, 8)]
"""


def kforge(*arguments: str, cwd: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    program = "from kernelforge.cli.main import main; main()"
    return subprocess.run(
        [sys.executable, "-c", program, *arguments], cwd=cwd, capture_output=True, text=True, check=False,
        env={**os.environ, "NO_COLOR": "1", **environ}, timeout=120,
    )  # fmt: skip


def check(result: subprocess.CompletedProcess[str], code: int, *words: str) -> None:
    assert result.returncode == code, result.stderr
    for word in words:
        assert word in result.stderr, result.stderr
    assert "Traceback" not in result.stderr
    assert result.stdout == ""


@pytest.fixture(scope="module")
def captured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("errors")
    (folder / "model.py").write_text(MODEL)
    result = kforge("capture", "model.py", "-o", "model.kforge", "--device", "cpu", cwd=folder)
    assert result.returncode == 0, result.stderr
    return folder


def test_model_file_without_a_model(tmp_path: Path) -> None:
    (tmp_path / "m.py").write_text("def get_inputs(): return []")
    check(kforge("capture", "m.py", "-o", "p.kforge", cwd=tmp_path), 3, "m.py", "Model")
    assert sorted(p.name for p in tmp_path.iterdir() if p.name != "__pycache__") == ["m.py"]


def test_model_that_raises(tmp_path: Path) -> None:
    (tmp_path / "m.py").write_text(MODEL.replace("return torch.relu(x)", "raise ValueError('nothing works')"))
    check(kforge("capture", "m.py", "-o", "p.kforge", cwd=tmp_path), 3, "ValueError", "nothing works", "sample 1 of 1")
    assert not (tmp_path / "p.kforge").exists()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("return [torch.randn(8, 8)]", "return 5"), ("int", "list of the arguments")),
        (("return torch.relu(x)", "raise SystemExit(0)"), ("SystemExit", "sample 1 of 1")),
        (("import torch", "raise SystemExit(0)"), ("SystemExit", "importing it")),
    ],
)
def test_model_files_that_end_the_process_or_return_nonsense(
    tmp_path: Path, change: tuple[str, str], words: tuple[str, str]
) -> None:
    (tmp_path / "m.py").write_text(MODEL.replace(*change))
    check(kforge("capture", "m.py", "-o", "p.kforge", "--device", "cpu", cwd=tmp_path), 3, *words)
    assert not (tmp_path / "p.kforge").exists()


def test_a_project_of_another_model_is_not_resumed(captured: Path) -> None:
    (captured / "model.py").write_text(MODEL.replace("(8, 8)", "(9, 9)"))
    result = kforge("run", "model.py", "--device", "cpu", "--max-time", "5s", "-o", "m.cast", cwd=captured)
    check(result, 2, "model.kforge", "changed", "--project")
    assert not (captured / "m.cast").exists()
    (captured / "model.py").write_text(MODEL)


@pytest.mark.skipif(Path("/dev/nvidia0").exists(), reason="there is a GPU here")
def test_cuda_without_a_gpu(captured: Path) -> None:
    result = kforge("capture", "model.py", "-o", "other.kforge", "--device", "cuda", cwd=captured)
    check(result, 6, "CUDA", "--device cpu")


def test_no_compiler(captured: Path) -> None:
    result = kforge("forge", "model.kforge", "--trials", "1", cwd=captured, KFORGE_CXX="no-such-compiler")
    check(result, 6, "no-such-compiler", "KFORGE_CXX")


def test_project_that_does_not_exist(tmp_path: Path) -> None:
    check(kforge("forge", "nothing.kforge", cwd=tmp_path), 3, "nothing.kforge", "kforge capture")


def test_unwritable_project(captured: Path) -> None:
    # A file where a folder is needed stops root too, who may write anywhere else.
    (captured / "wall").write_text("")
    result = kforge("capture", "model.py", "-o", "wall/p.kforge", "--device", "cpu", cwd=captured)
    check(result, 3, "wall/p.kforge")


def test_project_of_a_newer_schema(captured: Path, tmp_path: Path) -> None:
    newer = tmp_path / "newer.kforge"
    shutil.copytree(captured / "model.kforge", newer)
    with sqlite3.connect(newer / "nodes.db") as database:
        database.execute("update project set schema = 9999")
    check(kforge("ops", str(newer), cwd=tmp_path), 3, "newer")


@pytest.mark.parametrize("damage", ["truncated", "edited", "not a zip"])
def test_damaged_package(tmp_path: Path, damage: str) -> None:
    from kernelforge.package.types import Header
    from kernelforge.package.writer import write_package

    path = tmp_path / "model.cast"
    write_package(path, [], header=Header(name="m", device="cpu", torch="2.13.0", created_by="test"))
    data = bytearray(path.read_bytes())
    if damage == "truncated":
        data = data[: len(data) // 2]
    elif damage == "edited":
        data[len(data) // 3] ^= 1
    else:
        data = bytearray(b"hello")
    path.write_bytes(bytes(data))
    check(kforge("cast", "inspect", str(path), cwd=tmp_path), 3, "model.cast")


def test_disk_full_during_export(tmp_path: Path) -> None:
    """A file-size limit of the process stands for a full disk: the write fails in the middle, for root too."""
    script = """
import resource, signal, sys
from pathlib import Path
from kernelforge.package.types import Header
from kernelforge.package.writer import write_package
from kernelforge.errors import PackageError
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
try:
    write_package(Path("m.cast"), [], header=Header(name="m" * 900, device="cpu", torch="2", created_by="t"))
except PackageError as error:
    print(error); sys.exit(error.exit_code)
"""
    (tmp_path / "m.cast").write_bytes(b"the old one")
    result = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert result.returncode == 3, result.stderr
    assert "m.cast" in result.stdout
    assert (tmp_path / "m.cast").read_bytes() == b"the old one"
    assert [p.name for p in tmp_path.iterdir()] == ["m.cast"]
