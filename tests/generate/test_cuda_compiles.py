"""CUDA sources compile for every architecture that a package may name, and keep their values in registers."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

ARCHITECTURES = ("80", "90", "100", "121")


@pytest.mark.nvcc
def test_a_sample_of_all_families_compiles_for_all_architectures_without_spills(cuda_unit: str, tmp_path: Path) -> None:
    from kernelforge.build.backends.cuda import find_nvcc
    from kernelforge.settings import load_settings

    source = tmp_path / "unit.cu"
    source.write_text(cuda_unit)
    targets = [f"-gencode=arch=compute_{a},code=sm_{a}" for a in ARCHITECTURES]
    command = [
        str(find_nvcc(load_settings())),
        "-std=c++17",
        "-O3",
        "--threads=4",
        *targets,
        "-Xptxas=-v",
        "-diag-suppress=177",
    ]
    done = subprocess.run(
        [*command, "-c", "-o", str(tmp_path / "unit.o"), str(source)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    spills = re.findall(r"(\d+) bytes spill stores", done.stderr)
    assert len(spills) >= len(ARCHITECTURES)
    assert set(spills) == {"0"}
