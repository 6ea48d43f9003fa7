"""What whoever writes a kernel says of it."""

from __future__ import annotations

import pytest

from kernelforge.generate.source import first_comment


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("// two rows a block\nint launch();", "two rows a block"),
        ("// kforge: arch=a\n// with wgmma\nint launch();", "with wgmma"),
        ("\n\n  // kforge: arch=a\n\nint launch(); // no notes\n", ""),
        ("// kforge: arch=a", ""),
        ("", ""),
        ("/* a block */\nint launch();", ""),
        (f"// {'x' * 500}\n", "x" * 200),
    ],
)
def test_the_first_comment_is_the_notes(source: str, said: str) -> None:
    assert first_comment(source) == said
