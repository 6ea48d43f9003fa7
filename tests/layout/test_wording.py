"""Counts and near names in words."""

from __future__ import annotations

from kernelforge.wording import did_you_mean, plural, speedup_words


def test_counts() -> None:
    assert [plural(n, "trial") for n in (0, 1, 2)] == ["0 trials", "1 trial", "2 trials"]
    assert plural(3, "miss", "misses") == "3 misses"


def test_speed_ups_have_the_digits_of_the_tables() -> None:
    assert speedup_words(0.0031, 0.0004, 17.718) == "0.003x [<0.001, 17.7]"


def test_near_names() -> None:
    assert did_you_mean("gellu", ["gelu", "relu", "gelu", "softmax"]) == "did you mean gelu or relu?"
    assert did_you_mean("zzzz", ["gelu"]) == ""
