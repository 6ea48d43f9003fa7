"""What `doctor` says of machines that are not this one, and of this one."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kernelforge.cli.main import make_app
from kernelforge.doctor import (
    check_cache,
    check_cxx,
    check_fence,
    check_gpus,
    check_native,
    check_nvcc,
    check_package,
    check_profiler,
    check_python,
    check_sanitizer,
    diagnose,
    judge_cuda,
    judge_disk,
)
from kernelforge.settings import Settings, load_settings


@dataclass(frozen=True)
class FakeTools:
    """A machine with these programs; outputs by the command's last argument."""

    paths: Mapping[str, str] = field(default_factory=dict)
    outputs: Mapping[str, str] = field(default_factory=dict)

    def which(self, name: str) -> str | None:
        return self.paths.get(name)

    def output(self, command: Sequence[str]) -> str | None:
        return next((text for key, text in self.outputs.items() if key in " ".join(command)), None)


def settings(tmp_path: Path, **environ: str) -> Settings:
    return load_settings({"KFORGE_CACHE_DIR": str(tmp_path / "cache"), **environ})


def test_the_call_table_is_compiled_or_the_reason_is_said(tmp_path: Path) -> None:
    found = check_native(settings(tmp_path))
    assert found.status == "ok" or "Python.h" in found.detail
    line = check_native(settings(tmp_path, KFORGE_NATIVE="0"))
    assert (line.status, "KFORGE_NATIVE" in line.detail) == ("warn", True)
    line = check_native(settings(tmp_path / "other", KFORGE_CXX="/nowhere/g++", PATH=""))
    assert line.status in {"ok", "warn"}


def test_this_machine_can_run_the_tests(tmp_path: Path) -> None:
    lines = {line.name: line for line in diagnose(settings(tmp_path))}
    assert {n for n, line in lines.items() if line.status == "fail"} == set()
    assert {
        "Python",
        "torch",
        "CUDA in torch",
        "C++ compiler",
        "OpenMP",
        "nvcc",
        "cache",
        "disk",
        "GPU",
    } <= lines.keys()


def test_every_line_that_is_not_ok_has_a_fix(tmp_path: Path) -> None:
    lines = [
        check_python((3, 10, 1)), judge_cuda(None, usable=False, gpu_present=True),
        judge_cuda("13.0", usable=False, gpu_present=True), check_package("no-such-distribution", why="x"),
        *check_cxx(settings(tmp_path, KFORGE_CXX="/no/such/compiler"), FakeTools()),
        check_nvcc(settings(tmp_path, KFORGE_NVCC="/no/such/nvcc"), FakeTools(), gpu_present=False),
        judge_disk(1 << 30), judge_disk(1 << 20), check_profiler(FakeTools(), gpu_present=True),
        check_fence(FakeTools(), root=True),
    ]  # fmt: skip
    assert [line.status for line in lines] == [
        "fail",
        "warn",
        "warn",
        "fail",
        "fail",
        "warn",
        "warn",
        "fail",
        "warn",
        "warn",
    ]
    assert all(line.fix for line in lines)


def test_a_compiler_without_openmp_is_a_warning(tmp_path: Path) -> None:
    tools = FakeTools(outputs={"--version": "g++ 12.2"})
    compiler, openmp = check_cxx(settings(tmp_path), tools)
    assert (compiler.status, openmp.status) == ("ok", "warn")


def test_a_gpu_that_others_use_is_a_warning() -> None:
    row = ["0", "NVIDIA H200", "580.1", "345", "1980", "Enabled", "Disabled"]
    busy = check_gpus([row], FakeTools(outputs={"compute-apps": "4242, python\n"}))
    idle = check_gpus([row], FakeTools(outputs={"compute-apps": "\n"}))
    assert [line.status for line in busy] == ["ok", "warn"]
    assert "4242" in busy[1].detail
    assert [line.status for line in idle] == ["ok", "ok"]


def test_mig_and_persistence_are_warnings() -> None:
    rows = [
        ["0", "NVIDIA H200", "580.1", "345", "1980", "Enabled", "Enabled"],
        ["1", "NVIDIA H200", "580.1", "345", "1980", "Disabled", "Disabled"],
    ]
    mig, persistence, _ = check_gpus(rows, FakeTools())
    assert (mig.status, persistence.status) == ("warn", "warn")


def test_gpu_tools_are_not_missed_without_a_gpu() -> None:
    assert check_profiler(FakeTools(), gpu_present=False).status == "ok"
    assert check_sanitizer(load_settings({}), gpu_present=False).status == "ok"


def test_the_fence_is_that_of_the_user_who_asks() -> None:
    root = check_fence(FakeTools(outputs={"unshare --net": ""}), root=True)
    assert (root.status, "user of its own" in root.detail) == ("ok", True)
    user = check_fence(FakeTools(outputs={"unshare --user": ""}), root=False)
    assert (user.status, "user of its own" in user.detail) == ("ok", False)


def test_a_cache_that_cannot_be_written_fails(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    lines = check_cache(file / "cache")
    assert [line.status for line in lines] == ["fail"]
    assert "KFORGE_CACHE_DIR" in lines[0].fix


def test_looking_at_the_cache_leaves_nothing_behind(tmp_path: Path) -> None:
    assert [line.status for line in check_cache(tmp_path / "a" / "b")] == ["ok", "ok"]
    assert list(tmp_path.iterdir()) == []


def test_command_prints_json_and_fails_with_6(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KFORGE_CXX", "/no/such/compiler")
    result = CliRunner().invoke(make_app(), ["doctor", "--json"])
    assert result.exit_code == 6
    failed = [line["name"] for line in json.loads(result.stdout) if line["status"] == "fail"]
    assert failed == ["C++ compiler"]
