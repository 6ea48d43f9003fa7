"""Small pieces of sentences: a count with its noun, a speed-up, a time, what a misspelt name may have meant. Pure."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterable

from kernelforge.errors import UsageError

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def plural(count: int, noun: str, nouns: str = "") -> str:
    """A count with its noun: "1 trial", "2 trials", "0 trials". nouns: the plural, where it is not `noun` with an s."""
    return f"{count} {noun_for(count, noun, nouns)}"


def noun_for(count: int, noun: str, nouns: str = "") -> str:
    """The noun in the number that goes with the count."""
    return noun if count == 1 else nouns or f"{noun}s"


def three_digits(value: float) -> str:
    """A number with three significant digits: "2.83", "17.7", "140", "0.003", "<0.001"."""
    if 0 < abs(value) < 0.0995:
        return f"{value:.3f}" if abs(value) >= 0.0005 else "<0.001"
    if abs(value) < 9.995:
        return f"{value:.2f}"
    return f"{value:.1f}" if abs(value) < 99.95 else f"{value:.0f}"


def speedup_words(median: float, low: float, high: float) -> str:
    """A speed-up with its interval, digit for digit as tables have it: "2.83x [2.71, 2.95]"."""
    return f"{three_digits(median)}x [{three_digits(low)}, {three_digits(high)}]"


def time_text(us: float) -> str:
    """Microseconds with three digits: "2.09 us", "1.5 ms"."""
    return f"{us / 1e3:.3g} ms" if us >= 1000 else f"{us:.3g} us"


def size_text(count: float) -> str:
    """Bytes with three digits: "96 bytes", "32 kB", "2 MB"."""
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= factor:
            return f"{count / factor:.3g} {unit}"
    return f"{count:.0f} bytes"


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """What `name` may be a misspelling of, as a question: "did you mean gelu-1a2b3c4d?"; "" if nothing is near."""
    close = difflib.get_close_matches(name, list(dict.fromkeys(known)), n=3, cutoff=0.6)
    return f"did you mean {' or '.join(close)}?" if close else ""


def check_known(names: Iterable[str], known: Collection[str], what: str) -> None:
    """Refuse a name that is none of the known ones. what: they are, for the message: "mode of dispatch".

    Raises:
        UsageError: names the first, and what it may have been meant to be.
    """
    for name in names:
        if name not in known:
            raise UsageError(f"no {what} {name!r}", hint=did_you_mean(name, known) or f"there are: {', '.join(known)}")


def printable(text: str) -> str:
    """Text of others for a terminal: control characters, which may move the cursor or set its title, are spelled out.

    Line ends and tabs stay.
    """
    return _CONTROL.sub(lambda match: f"\\x{ord(match[0]):02x}", text)
