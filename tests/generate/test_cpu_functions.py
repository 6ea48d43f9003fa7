"""The CPU's own exp, erf, tanh and half conversions: exact to 2 ulp, right at the edges, and vectorised."""

from __future__ import annotations

import ctypes
import math
import subprocess

import pytest
import torch

from kernelforge.generate.emitter.functions import cpu_functions

NAMES = ("exp", "erf", "tanh")
LOOP = """
extern "C" void many_{name}(const float* x, float* y, long n) {{
#pragma omp simd
  for (long i = 0; i < n; ++i) y[i] = fast_{name}(x[i]);
}}
"""
HALVES = """
extern "C" void widen(const uint16_t* x, float* y, long n) { for (long i = 0; i < n; ++i) y[i] = half_to_float(x[i]); }
extern "C" void narrow(const float* x, uint16_t* y, long n) { for (long i = 0; i < n; ++i) y[i] = float_to_half(x[i]); }
"""


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> tuple[ctypes.CDLL, str]:
    """The functions in loops, and what the compiler says it vectorised."""
    folder = tmp_path_factory.mktemp("functions")
    head = "#include <cmath>\n#include <cstdint>\n#include <cstring>\n" + cpu_functions([*NAMES, "half"])
    (folder / "f.cpp").write_text(head + "".join(LOOP.format(name=name) for name in NAMES) + HALVES)
    flags = ["-std=c++17", "-O3", "-march=x86-64-v3", "-fno-math-errno", "-ffp-contract=fast", "-fopenmp"]
    flags += ["-fPIC", "-shared", "-fopt-info-vec"]
    command = ["g++", *flags, "-o", str(folder / "f.so"), str(folder / "f.cpp")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return ctypes.CDLL(str(folder / "f.so")), done.stderr


def apply(library: ctypes.CDLL, function: str, x: torch.Tensor, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    y = torch.empty(x.shape, dtype=dtype)
    library[function](ctypes.c_void_p(x.data_ptr()), ctypes.c_void_p(y.data_ptr()), ctypes.c_long(x.numel()))
    return y


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("reach", [0.01, 1.0, 10.0, 87.0])
def test_a_function_is_exact_to_two_ulp(compiled: tuple[ctypes.CDLL, str], name: str, reach: float) -> None:
    x = torch.linspace(-reach, reach, 200_001)
    truth = getattr(torch, name)(x.double())
    spacing = torch.nextafter(truth.abs().float(), torch.tensor(math.inf)) - truth.abs().float()
    assert ((apply(compiled[0], f"many_{name}", x) - truth).abs() / spacing).max() < 2


@pytest.mark.parametrize("name", NAMES)
def test_a_function_is_right_at_the_edges(compiled: tuple[ctypes.CDLL, str], name: str) -> None:
    x = torch.tensor([math.nan, math.inf, -math.inf, 0.0, 100.0, -110.0, 3e38, -3e38])
    assert torch.equal(
        apply(compiled[0], f"many_{name}", x).nan_to_num(7, 8, 9), getattr(torch, name)(x).nan_to_num(7, 8, 9)
    )


def test_every_function_is_vectorised(compiled: tuple[ctypes.CDLL, str]) -> None:
    assert compiled[1].count("loop vectorized using 32 byte vectors") >= len(NAMES)


def test_half_conversions_agree_with_torch_for_every_half(compiled: tuple[ctypes.CDLL, str]) -> None:
    bits = torch.arange(-32768, 32768, dtype=torch.int32).to(torch.int16)
    wide = apply(compiled[0], "widen", bits)
    assert torch.equal(wide.nan_to_num(7), bits.view(torch.float16).float().nan_to_num(7))
    between = wide * (1 + 2.0**-11)
    narrow = apply(compiled[0], "narrow", between, torch.int16).view(torch.float16)
    assert torch.equal(narrow.nan_to_num(7), between.half().nan_to_num(7))
