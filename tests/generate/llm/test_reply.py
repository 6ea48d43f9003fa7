"""The kernel in a reply."""

from __future__ import annotations

import time

import pytest
from tests.fakes.language_model import answer

from kernelforge.generate.llm.reply import Reply, read_reply
from kernelforge.generate.source import LARGEST_SOURCE, MOST_NOTES

LAUNCH = 'extern "C" int launch() { return 0; }\n'


@pytest.mark.parametrize(
    "text",
    [
        f"Two rows\na block.\n\n```c++\n{LAUNCH}```\n",
        f"Two rows\na block.\n```cuda\n{LAUNCH}```",
        f"Two rows\na block.\n  ~~~\n{LAUNCH}  ~~~\nThat is all.",
        f"Two rows\na block.\n````cpp\n{LAUNCH}````\n",
        f"Two rows a block.\n\n```c++\nint x = 3;\n```\n\nIn full:\n\n```c++\n{LAUNCH}```\n",
    ],
)
def test_the_code_block_that_defines_launch_is_the_kernel(text: str) -> None:
    reply = read_reply(answer(text))
    assert reply == Reply(source=LAUNCH, notes="Two rows a block.")


def test_line_ends_of_other_systems_are_ours() -> None:
    reply = read_reply(answer(f"x\r\n```c++\r\n{LAUNCH[:-1]}\r\n```\r\n"))
    assert isinstance(reply, Reply) and reply.source == LAUNCH


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "it is empty"),
        (" \n", "it is empty"),
        ("I would use shared memory: launch(...)", "there is no fenced code block"),
        ("```c++\nint f();\n```", "none of its code blocks defines launch"),
        (f"```c++\n{LAUNCH}```\nor\n```c++\n{LAUNCH}```", "2 of its code blocks define launch"),
        (f"```c++\n{LAUNCH}", "its code block does not end"),
        (f"```c++\n#include <torch/extension.h>\n{LAUNCH}```", "includes torch's headers"),
        (f"```c++\n{LAUNCH}\0```\n```\n", "no text"),
        (f"```c++\n{LAUNCH}\ud800\n```\n", "no text"),
        (f"```c++\n{LAUNCH}{'//' * LARGEST_SOURCE}\n```\n", "larger than 1 MiB"),
    ],
)
def test_what_is_no_kernel_is_told_in_words(text: str, why: str) -> None:
    found = read_reply(answer(text))
    assert isinstance(found, str) and why in found


def test_a_reply_that_was_cut_off_is_none_even_if_a_block_is_complete() -> None:
    text = f"```c++\n{LAUNCH}```\nand now the"
    assert read_reply(answer(text, finish="length")) == "it was cut off at the longest length that is allowed"
    assert read_reply(answer(text, finish="refusal")) == "it is a refusal"


def test_notes_are_short_and_can_be_stored() -> None:
    words = "word \ud800" * 200
    reply = read_reply(answer(f"{words}\n```c++\n{LAUNCH}```\n"))
    assert isinstance(reply, Reply) and len(reply.notes) <= MOST_NOTES and reply.notes.endswith(" ...")
    reply.notes.encode()
    nothing = read_reply(answer(f"```c++\n{LAUNCH}```\n"))
    assert isinstance(nothing, Reply) and nothing.notes == ""


def test_large_replies_are_read_in_no_time() -> None:
    """Two megabytes of almost fences."""
    assert isinstance(read_reply(answer("``` `\n" * 300_000)), str)
    assert isinstance(read_reply(answer("`" * 2_000_000)), str)
    assert isinstance(read_reply(answer("~~~\n" * 400_000 + "`")), str)
    for hostile in (
        "```c\n" * 50_000,
        "```c++\nlaunch(\n" * 20_000,
        "".join("`" * (3 + i % 50) + "\n" for i in range(20_000)),
    ):
        started = time.monotonic()
        assert isinstance(read_reply(answer(hostile)), str)
        assert time.monotonic() - started < 5.0


@pytest.mark.parametrize(
    ("said", "comment", "notes"),
    [
        ("Here is the kernel.", "// two rows a block", "two rows a block"),
        ("Here is the kernel.", "int unused;", "Here is the kernel."),
        ("Each block now makes two rows at once.", "// kernel.cpp", "Each block now makes two rows at once."),
        ("", "// two rows a block", "two rows a block"),
        ("\x1b[31mred\x1b]0;title\x07 words", "int unused;", "\\x1b[31mred\\x1b]0;title\\x07 words"),
    ],
)
def test_notes_are_what_is_said_or_else_the_first_comment(said: str, comment: str, notes: str) -> None:
    reply = read_reply(answer(f"{said}\n```c++\n{comment}\n{LAUNCH}```\n"))
    assert isinstance(reply, Reply) and reply.notes == notes
