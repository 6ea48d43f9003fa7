"""`kforge library` and `--no-library`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kernelforge.benchmark.types import Interval
from kernelforge.capture.types import TensorRef
from kernelforge.cards.types import Extent, TensorPattern, Variant
from kernelforge.library.folder import Library
from kernelforge.library.types import Origin, StoredKernel
from kernelforge.report.rows import ForgeReport, RunReport

TENSOR = TensorPattern(shape=(Extent(8),), stride=(Extent(1),), dtype="float32")


def kernel(operator: str, speedup: float) -> StoredKernel:
    interval = Interval(median=speedup, low=0.9 * speedup, high=1.1 * speedup)
    variant = Variant(operator=operator, arguments=(("input", TensorRef(0)),), tensors=(TENSOR,), outputs=(TENSOR,))
    return StoredKernel(
        variant=variant, least_elements=16, source="int launch();\n", backend="cpp", abi="0" * 64,
        generator="template", notes="8 threads", schedule="", language_model="", model="Tiny",
        origin=Origin(device="x86-64-v3", toolchain="a compiler 12; target x86-64-v3", torch="2.10"),
        speedup=interval, dispatch=interval, certified=1.0e9,
    )  # fmt: skip


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Library:
    monkeypatch.setenv("KFORGE_LIBRARY_DIR", str(tmp_path / "library"))
    monkeypatch.setenv("KFORGE_LIBRARY", "1")
    return Library(tmp_path / "library")


def test_ls_of_an_empty_library(kforge: Any, library: Library) -> None:
    ran = kforge("library", "ls")
    assert (ran.code, ran.stdout) == (0, f"0 kernels in {library.folder}\n")
    assert json.loads(kforge("library", "ls", "--json").stdout) == {
        "path": str(library.folder), "enabled": True, "kernels": []
    }  # fmt: skip


def test_ls_lists_each_kernel_and_says_if_the_library_is_off(
    kforge: Any, library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    relu, exp = kernel("relu", 2.0), kernel("exp", 3.0)
    library.keep([relu, exp])
    lines = kforge("library", "ls").stdout.splitlines()
    assert lines[0].split() == [
        "kernel", "variant", "dispatch", "95%", "interval", "device", "certified", "made", "for", "how",
    ]  # fmt: skip
    assert lines[2].split()[:3] == [exp.id[:8], exp.variant.label, "3.00x"]
    assert lines[3].split()[3:] == ["1.80-2.20", "x86-64-v3", "2001-09-09", "Tiny", "8", "threads"]
    monkeypatch.setenv("KFORGE_LIBRARY", "0")
    ran = kforge("library", "ls", "--json")
    data = json.loads(ran.stdout)
    assert (data["enabled"], [k["id"] for k in data["kernels"]]) == (False, [exp.id, relu.id])
    assert "switched off" in kforge("library", "ls").stdout
    assert ran.stderr == f"next: kforge library show {exp.id[:8]}\n"


def test_show_prints_facts_and_source(kforge: Any, library: Library) -> None:
    relu = kernel("relu", 2.0)
    library.keep([relu])
    ran = kforge("library", "show", relu.id[:10])
    assert ran.code == 0 and ran.stdout.endswith("\n\nint launch();\n")
    for words in (relu.id, relu.variant.describe(), "2.00x 1.80-2.20, used from 16 elements on", "a compiler 12"):
        assert words in ran.stdout
    data = json.loads(kforge("library", "show", relu.id, "--json").stdout)
    assert (data["source"], data["torch"], data["least_elements"]) == ("int launch();\n", "2.10", 16)
    assert kforge("library", "show", "zz").code == 3


def test_rm_removes_what_is_named_or_all(kforge: Any, library: Library) -> None:
    kernels = [kernel(operator, 2.0) for operator in ("relu", "exp", "gelu")]
    library.keep(kernels)
    assert kforge("library", "rm").code == kforge("library", "rm", kernels[0].id, "--all").code == 2
    assert kforge("library", "rm", kernels[0].id, "zz").code == 3 and len(library.kernels()) == 3
    assert kforge("library", "rm", kernels[0].id).stdout == f"{library.folder}: removed 1 kernel\n"
    assert json.loads(kforge("library", "rm", "--all", "--json").stdout)["removed"] == 2
    assert library.kernels() == ()


def test_a_damaged_kernel_is_a_note(kforge: Any, library: Library) -> None:
    library.keep([kernel("relu", 2.0)])
    (path,) = library.folder.iterdir()
    path.write_bytes(b"{}")
    ran = kforge("library", "ls")
    assert ran.code == 0 and "0 kernels" in ran.stdout
    assert ran.stderr.startswith("note: kernel ") and "kforge library rm" in ran.stderr


def test_path(kforge: Any, library: Library) -> None:
    assert kforge("library", "path").stdout == f"{library.folder}\n"
    assert json.loads(kforge("library", "path", "--json").stdout) == {"path": str(library.folder), "enabled": True}


@pytest.mark.parametrize("options", [(), ("--no-library",)])
def test_no_library_reaches_the_verbs(kforge: Any, fake_verbs: Callable[..., None], options: tuple[str, ...]) -> None:
    seen: list[object] = []

    def forge_project(_project: Path, **values: object) -> ForgeReport:
        seen.append(values["library"])
        return ForgeReport(rows=(), trials=0, seconds=0.0, stopped="exhausted")

    def run_source(_source: str, **values: object) -> RunReport:
        seen.append(values["library"])
        return RunReport(
            rows=(), whole_model=None, package="", project="x.kforge", seconds=0.0, stopped="exhausted"
        )  # fmt: skip

    fake_verbs(forge_project=forge_project, run_source=run_source)
    assert kforge("forge", "x.kforge", *options).code == kforge("run", "model.py", *options).code == 0
    assert seen == [not options, not options]
