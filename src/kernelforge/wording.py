"""Small pieces of sentences: a count with its noun, what a misspelt name may have meant. Pure."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def plural(count: int, noun: str, nouns: str = "") -> str:
    """A count with its noun: "1 trial", "2 trials", "0 trials". nouns: the plural, where it is not `noun` with an s."""
    return f"{count} {noun_for(count, noun, nouns)}"


def noun_for(count: int, noun: str, nouns: str = "") -> str:
    """The noun in the number that goes with the count."""
    return noun if count == 1 else nouns or f"{noun}s"


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """What `name` may be a misspelling of, as a question: "did you mean gelu-1a2b3c4d?"; "" if nothing is near."""
    close = difflib.get_close_matches(name, list(dict.fromkeys(known)), n=3, cutoff=0.6)
    return f"did you mean {' or '.join(close)}?" if close else ""
