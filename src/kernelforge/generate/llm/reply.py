"""The kernel in a model's reply. Owns `Reply`, `read_reply`. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

from kernelforge.generate.llm.types import Completion

MOST_NOTES = 200
"""Characters of the notes."""
LARGEST_SOURCE = 1 << 20
"""Bytes of a kernel; no kernel is as long, and a compiler takes minutes over it."""

_FENCE = re.compile(r"^ {0,3}(`{3,}|~{3,})[^\n`]*\n(.*?)^ {0,3}\1[`~]*[ \t]*$", re.DOTALL | re.MULTILINE)
_OPEN_FENCE = re.compile(r"^ {0,3}(`{3,}|~{3,})[^\n`]*\n", re.MULTILINE)
_TORCH = re.compile(r'^[ \t]*#[ \t]*include[ \t]*[<"](?:torch|ATen|c10)/', re.MULTILINE)
_LAUNCH = re.compile(r"\blaunch\s*\(")


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """source: of the kernel. notes: what the model says is new in it, in a line."""

    source: str
    notes: str


def read_reply(completion: Completion) -> Reply | str:
    """The one kernel in a reply; or why there is none, in words for whoever wrote it.

    Of several code blocks the one that defines `launch` is it: a model may quote a line before it. A reply that was cut
    off is none even if a block of it is complete: what is missing cannot be known.
    """
    if completion.finish_reason == "length":
        return "it was cut off at the longest length that is allowed"
    if completion.finish_reason == "refusal":
        return "it is a refusal"
    text = completion.text.replace("\r\n", "\n")
    blocks = [match[2] for match in _FENCE.finditer(text)]
    kernels = [block for block in blocks if _LAUNCH.search(block)]
    if len(kernels) > 1:
        return f"{len(kernels)} of its code blocks define launch, and which one is meant is not clear"
    if not kernels:
        return _why_none(text, blocks)
    source = kernels[0]
    if len(source.encode(errors="surrogatepass")) > LARGEST_SOURCE:
        return f"its code is larger than {LARGEST_SOURCE >> 20} MiB"
    if "\0" in source or any("\ud800" <= c <= "\udfff" for c in source):
        return "its code holds characters that are no text"
    if _TORCH.search(source):
        # It would be built and judged, in minutes, as what is never exported.
        return "it includes torch's headers, which no kernel here may"
    return Reply(source=source, notes=_notes(text))


def _why_none(text: str, blocks: list[str]) -> str:
    if not text.strip():
        return "it is empty"
    if blocks:
        return "none of its code blocks defines launch"
    if _OPEN_FENCE.search(text):
        return "its code block does not end"
    return "there is no fenced code block in it"


def _notes(text: str) -> str:
    before = text[: _OPEN_FENCE.search(text).start()]  # type: ignore[union-attr]  # a block was found
    words = " ".join(before.split()).encode(errors="replace").decode()
    return words if len(words) <= MOST_NOTES else words[: MOST_NOTES - 4].rpartition(" ")[0] + " ..."
