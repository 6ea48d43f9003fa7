"""Emitted and template sources agree with eager: every family, dtype and several sizes, special values, in place."""

from __future__ import annotations

from typing import Protocol

import pytest


class Bench(Protocol):
    def check(self, case_name: str, dtype: str, n: int) -> None: ...


@pytest.mark.parametrize("n", [0, 1, 13])
def test_cpp_source_agrees_with_eager(cpp_bench: Bench, case_name: str, dtype: str, n: int) -> None:
    cpp_bench.check(case_name, dtype, n)


@pytest.mark.parametrize("n", [0, 4])
def test_cuda_source_agrees_with_eager_under_emulated_threads(
    emulated_bench: Bench, case_name: str, dtype: str, n: int
) -> None:
    emulated_bench.check(case_name, dtype, n)


@pytest.mark.parametrize("n", [8, 11, 16])
def test_accesses_may_straddle_rows_of_any_length(emulated_bench: Bench, dtype: str, n: int) -> None:
    emulated_bench.check("batch_norm_length", dtype, n)
