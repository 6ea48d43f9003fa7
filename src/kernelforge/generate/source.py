"""The text of a kernel, whoever wrote it: what makes it none, and what its author says of it. Pure."""

from __future__ import annotations

MOST_NOTES = 200
"""Characters of a candidate's notes."""
LARGEST_SOURCE = 1 << 20
"""Bytes of a kernel; no kernel is as long, and a compiler takes minutes over it."""
TOO_LARGE = f"is larger than {LARGEST_SOURCE >> 20} MiB"
DIRECTIVE = "// kforge:"
"""How a line to the build begins."""


def source_problem(source: str) -> str:
    """What makes a text no source that can be judged, as the end of a sentence, or ""."""
    if not source.strip():
        return "is empty"
    try:
        size = len(source.encode())
    except UnicodeEncodeError as error:
        return f"is no text: {error.reason} at character {error.start}"
    if size > LARGEST_SOURCE:
        return TOO_LARGE
    return "is no text" if "\0" in source else ""


def first_comment(source: str) -> str:
    """The first line of a source, if it is a comment: what is new in it. One that asks for an architecture is none."""
    lines = (line.strip() for line in source.splitlines() if line.strip())
    first = next((line for line in lines if not line.startswith(DIRECTIVE)), "")
    return first.removeprefix("//").strip()[:MOST_NOTES] if first.startswith("//") else ""
