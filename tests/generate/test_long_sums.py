"""A sum of many terms keeps its digits: a certificate once refused a mean over a large image that was a loop."""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import torch


@pytest.mark.parametrize("name", ["long_mean", "long_mean_middle"])
def test_equal_terms_add_up(cpp_unit: Callable[[str], str], tmp_path: Path, name: str) -> None:
    (tmp_path / "unit.cpp").write_text(cpp_unit(name))
    command = ["g++", "-std=c++17", "-O3", "-mf16c", "-fopenmp", "-fPIC", "-shared", "unit.cpp", "-o", "unit.so"]
    subprocess.run(command, cwd=tmp_path, check=True)
    library = ctypes.CDLL(str(tmp_path / "unit.so"))
    x, y = torch.full((9001 * 3,), 1.582169), torch.zeros(3)
    assert library.launch_0(ctypes.c_void_p(x.data_ptr()), ctypes.c_int64(1), ctypes.c_void_p(y.data_ptr()), None) == 0
    assert abs(float(y[0]) / 1.582169 - 1) < 5e-6
