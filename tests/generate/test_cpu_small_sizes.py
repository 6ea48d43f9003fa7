"""Small calls on the CPU enter no parallel region; large ones do."""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

# A run time of one thread that counts parallel regions.
RUN_TIME = """
extern "C" {
int regions = 0;
void GOMP_parallel(void (*body)(void*), void* data, unsigned, unsigned) { ++regions; body(data); }
int omp_get_num_threads() { return 1; }
int omp_get_thread_num() { return 0; }
}
"""


@pytest.mark.parametrize("name", ["silu", "softmax", "softmax_middle"])
def test_a_small_call_enters_no_parallel_region(cpp_unit: Callable[[str], str], tmp_path: Path, name: str) -> None:
    (tmp_path / "unit.cpp").write_text(cpp_unit(name) + RUN_TIME)
    command = ["g++", "-std=c++17", "-O1", "-mf16c", "-fopenmp", "-fPIC", "-c", "unit.cpp", "-o", "unit.o"]
    subprocess.run(command, cwd=tmp_path, check=True)
    subprocess.run(["g++", "-shared", "-Wl,-Bsymbolic", "unit.o", "-o", "unit.so", "-lm"], cwd=tmp_path, check=True)
    library = ctypes.CDLL(str(tmp_path / "unit.so"))
    x, y = torch.randn(2, 1000 * 70).unbind()
    for n, regions in ((1, 0), (13, 0), (1000, 1)):
        arguments = (ctypes.c_void_p(x.data_ptr()), ctypes.c_int64(n), ctypes.c_void_p(y.data_ptr()), None)
        assert library.launch_0(*arguments) == 0
        assert ctypes.c_int.in_dll(library, "regions").value == regions
