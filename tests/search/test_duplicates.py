"""When two sources are one."""

from __future__ import annotations

import pytest

from kernelforge.search.duplicates import normalised


@pytest.mark.parametrize(
    "other",
    [
        "int a = 1;  // one\nchar* s = \"//x\";", "/* a\nb */int a = 1;\n\n\n   char* s = \"//x\";\n",
        "\tint  a =\t1; \nchar* s = \"//x\"; // it's",
    ],
)  # fmt: skip
def test_comments_and_blanks_make_no_other_source(other: str) -> None:
    assert normalised(other) == normalised('int a = 1;\nchar* s = "//x";')


@pytest.mark.parametrize("other", ['char* s = "//y";', 'char* s = "/* */";', "#define A 1\nB", "char c = '\"'; // \"x"])
def test_what_the_compiler_sees_differs(other: str) -> None:
    sources = ['char* s = "//x";', 'char* s = "/**/";', "#define A 1 B", "char c = '\"'; int d; // \"x"]
    assert normalised(other) not in {normalised(s) for s in sources}
