"""Numbers as people read and type them: times, shares, speed-ups, bytes, durations. Pure; owns no layout."""

from __future__ import annotations

import math
import re

from kernelforge.errors import UsageError
from kernelforge.wording import three_digits

UNKNOWN = "-"
_SECONDS = {"ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_PART = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|[smhd])")


def format_us(value_us: float | None) -> str:
    """A time given in microseconds, with three significant digits: "0.42 us", "813 us", "1.20 ms", "2.05 s"."""
    if value_us is None or not math.isfinite(value_us):
        return UNKNOWN
    for limit, unit in ((999.5, "us"), (999.5e3, "ms")):
        if value_us < limit:
            return f"{three_digits(value_us * 1e3 / (limit / 0.9995))} {unit}"
    return f"{three_digits(value_us / 1e6)} s"


def format_ms(value_ms: float | None) -> str:
    """A time given in milliseconds, in the unit that suits it."""
    return format_us(None if value_ms is None else value_ms * 1e3)


def format_share(share: float | None) -> str:
    """A share in [0, 1] as a percentage: "12.3%", "<0.1%", "0%"."""
    if share is None or not math.isfinite(share):
        return UNKNOWN
    if share == 0:
        return "0%"
    return "<0.1%" if share < 0.0005 else f"{share * 100:.1f}%"


def format_speedup(speedup: float | None) -> str:
    """Eager over candidate: "2.83x", "17.7x", "140x"."""
    if speedup is None or not math.isfinite(speedup):
        return UNKNOWN
    return f"{three_digits(speedup)}x"


def format_interval(low: float | None, high: float | None) -> str:
    """The interval of a speed-up: "2.71-2.95"; "" if unknown."""
    if low is None or high is None or not (math.isfinite(low) and math.isfinite(high)):
        return ""
    return f"{three_digits(low)}-{three_digits(high)}"


def format_bytes(size_bytes: int) -> str:
    """Bytes in binary units: "512 B", "1.5 KiB", "3.2 GiB"."""
    value = float(size_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"


def format_duration(seconds: float) -> str:
    """A span of wall time: "0.4s", "42s", "3m 05s", "2h 10m"."""
    if seconds < 10:
        return f"{seconds:.1f}s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m {whole % 60:02d}s"
    return f"{whole // 3600}h {whole % 3600 // 60:02d}m"


def parse_duration(text: str) -> float:
    """Seconds of a span as people type it: "3m", "90s", "1h30m", "500ms"; a bare number is seconds.

    Raises:
        UsageError: not a span, or not positive.
    """
    compact = text.strip().lower()
    hint = 'write a number with a unit, for example "90s", "3m" or "1h30m"'
    try:
        seconds = float(compact)
    except ValueError:
        parts = _PART.findall(compact)
        if not parts or _PART.sub("", compact).strip():
            raise UsageError(f"not a length of time: {text!r}", hint=hint) from None
        seconds = sum(float(number) * _SECONDS[unit] for number, unit in parts)
    if not math.isfinite(seconds) or seconds <= 0:
        raise UsageError(f"a length of time must be positive: {text!r}", hint=hint)
    return seconds
