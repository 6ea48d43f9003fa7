"""On a GPU: a kernel that spins for a known time reads as long as it takes."""

from __future__ import annotations

import pytest
from benchmarks.spin import read_durations

from kernelforge.settings import load_settings


@pytest.mark.gpu
@pytest.mark.nvcc
def test_a_spin_kernel_reads_true() -> None:
    readings, clock_us = read_durations(load_settings())
    assert 0 < clock_us < 4
    assert [r for r in readings if not r.true] == []
    # The kernel's own count leaves out its launch.
    assert all(0 < r.read_us - r.spun_us < 4 for r in readings)
