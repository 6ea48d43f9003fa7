"""Numbers as people read and type them."""

from __future__ import annotations

import math

import pytest

from kernelforge.errors import UsageError
from kernelforge.report.units import (
    format_bytes,
    format_duration,
    format_interval,
    format_share,
    format_speedup,
    format_us,
    parse_duration,
)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.42, "0.42 us"), (9.994, "9.99 us"), (9.996, "10.0 us"), (99.96, "100 us"), (813.2, "813 us"),
        (999.6, "1.00 ms"), (1234.0, "1.23 ms"), (999_600.0, "1.00 s"), (2_050_000.0, "2.05 s"), (None, "-"),
        (math.nan, "-"), (math.inf, "-"),
    ],
)  # fmt: skip
def test_times_have_three_digits(value: float | None, text: str) -> None:
    assert format_us(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0, "0%"), (0.0004, "<0.1%"), (0.0006, "0.1%"), (0.1234, "12.3%"), (1.0, "100.0%"), (None, "-")],
)
def test_shares(value: float | None, text: str) -> None:
    assert format_share(value) == text


def test_speedups_and_their_intervals() -> None:
    assert [format_speedup(v) for v in (0.0031, 1.0, 17.66, 140.2, None)] == ["0.003x", "1.00x", "17.7x", "140x", "-"]
    assert format_interval(2.71, 2.954) == "2.71-2.95"
    assert format_interval(None, 2.0) == ""


def test_bytes_and_durations() -> None:
    assert [format_bytes(v) for v in (512, 1536, 3 << 30)] == ["512 B", "1.5 KiB", "3.0 GiB"]
    assert [format_duration(v) for v in (0.4, 42.4, 185, 7800)] == ["0.4s", "42s", "3m 05s", "2h 10m"]


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("3m", 180),
        ("90s", 90),
        ("2h", 7200),
        ("1h30m", 5400),
        ("90", 90),
        ("500ms", 0.5),
        (" 1.5 M ", 90),
        ("1h 5s", 3605),
    ],
)
def test_durations_as_people_type_them(text: str, seconds: float) -> None:
    assert parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "3x", "m", "3m4", "-3m", "0s", "nan", "inf", "3 m x"])
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_duration(text)
    assert "3m" in caught.value.hint
