"""Counts and near names in words."""

from __future__ import annotations

from kernelforge.wording import did_you_mean, plural


def test_counts() -> None:
    assert [plural(n, "trial") for n in (0, 1, 2)] == ["0 trials", "1 trial", "2 trials"]
    assert plural(3, "miss", "misses") == "3 misses"


def test_near_names() -> None:
    assert did_you_mean("gellu", ["gelu", "relu", "gelu", "softmax"]) == "did you mean gelu or relu?"
    assert did_you_mean("zzzz", ["gelu"]) == ""
