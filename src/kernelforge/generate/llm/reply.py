"""The kernel in a model's reply. Owns `Reply`, `read_reply`. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from kernelforge.generate.llm.types import Completion
from kernelforge.generate.source import MOST_NOTES, first_comment, source_problem
from kernelforge.wording import printable

FEW_WORDS = 6
"""So few before the code say nothing of it: "Here is the kernel"."""

LONGEST_REPLY = 4 << 20
"""Characters: more than any model writes."""

_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})([^`]*)")
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
    if len(completion.text) > LONGEST_REPLY:
        return "it is far too long"
    text = completion.text.replace("\r\n", "\n")
    blocks = [*_blocks(text)]
    kernels = [block.text for block in blocks if block.closed and _LAUNCH.search(block.text)]
    if len(kernels) > 1:
        return f"{len(kernels)} of its code blocks define launch, and which one is meant is not clear"
    if not kernels:
        return _why_none(text, blocks)
    source = kernels[0]
    if problem := source_problem(source):
        return f"its code {problem}"
    if _TORCH.search(source):
        # It would be built and judged, in minutes, as what is never exported.
        return "it includes torch's headers, which no kernel here may"
    return Reply(source=source, notes=_notes(text[: blocks[0].start], source))


@dataclass(frozen=True, slots=True)
class _Block:
    """A fenced code block. start: character at which its fence begins. closed: False if the text ends in it."""

    start: int
    text: str
    closed: bool


def _blocks(text: str) -> Iterator[_Block]:
    """The code blocks of a text by the rules of CommonMark, in one pass: replies are long, and may be hostile."""
    fence, start, first, at = "", 0, 0, 0
    for line in text.split("\n"):
        begins, at = at, at + len(line) + 1
        if not fence:
            opened = _FENCE.fullmatch(line)
            if opened is not None:
                fence, start, first = opened[1], begins, at
        elif _closes(line, fence):
            yield _Block(start, text[first:begins], closed=True)
            fence = ""
    if fence:
        yield _Block(start, text[first:], closed=False)


def _closes(line: str, fence: str) -> bool:
    bare = line.strip()
    return len(line) - len(line.lstrip(" ")) <= 3 and len(bare) >= len(fence) and not bare.strip(fence[0])


def _why_none(text: str, blocks: Sequence[_Block]) -> str:
    if not text.strip():
        return "it is empty"
    if any(not block.closed for block in blocks):
        return "its code block does not end"
    if blocks:
        return "none of its code blocks defines launch"
    return "there is no fenced code block in it"


def _notes(before: str, source: str) -> str:
    """What is said before the code; of a mere "here it is" the kernel's own first line, if that is a comment."""
    said = " ".join(before.split())
    if len(said.split()) < FEW_WORDS:
        said = first_comment(source) or said
    words = printable(said).encode(errors="replace").decode()
    return words if len(words) <= MOST_NOTES else words[: MOST_NOTES - 4].rpartition(" ")[0] + " ..."
