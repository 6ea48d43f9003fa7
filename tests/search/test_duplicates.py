"""When two sources are one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from kernelforge.evaluate.types import Scored
from kernelforge.search.duplicates import MEASURED_AS, normalised, same_binary
from kernelforge.search.types import Node


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


def test_a_disturbed_measurement_is_not_handed_on(
    make_node: Callable[..., Node], make_scored: Callable[..., Scored]
) -> None:
    quiet = make_scored(2.0)
    busy = replace(quiet, measurement=replace(quiet.measurement, environment={"foreign_cpu_share": "0.9"}))
    assert same_binary(quiet.artifact, [make_node(1, busy)]) is None
    known = same_binary(quiet.artifact, [make_node(1, quiet), make_node(2, busy)])
    assert known is not None and known.measurement.environment[MEASURED_AS] == "trial 1"
