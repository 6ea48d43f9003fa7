"""Failed builds, as the real compilers report them: the cause, the candidate's own line, one hint."""

from __future__ import annotations

import pytest

from kernelforge.build.backends import get_backend
from kernelforge.build.types import Backend, BuildFailure
from kernelforge.cards.types import VariantRecord
from kernelforge.explain.builds import compiler_errors, explain_build
from kernelforge.explain.outcome import MAX_LINES, explain
from kernelforge.generate.types import Candidate
from kernelforge.settings import Settings

HEAD = 'extern "C" int launch(const float* input, float* out, void* workspace) {\n'


def failure_of(backend: Backend, record: VariantRecord, source: str) -> BuildFailure:
    candidate = Candidate(variant_id=record.variant.id, source=source, backend=backend.name, generator="manual")
    failure = backend.build(candidate, record.variant)
    assert isinstance(failure, BuildFailure)
    return failure


ERRORS = {
    "name": (
        HEAD + "  out[0] = count;\n  return 0;\n}\n", "line 2: 'count'", "out[0] = count;", 9, "the prelude declares",
    ),
    "syntax": (HEAD + "\tout[0] = 1\n\treturn 0;\n}\n", "line 2: expected", "out[0] = 1", 10, "a syntax error"),
    "signature": (
        'extern "C" int launch(float* out) { return 0; }\n', "line 1: conflicting", 'extern "C"', 15, "VARIANT --pre",
    ),
    "template": (
        "template <class T> T f(T* x) { return x.y; }\n" + HEAD + "  f(out);\n  return 0;\n}\n",
        "line 1: request for", "template <class T>", 40, "",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ERRORS)
def test_each_error_has_its_line_its_place_and_a_hint(backend: Backend, relu_record: VariantRecord, name: str) -> None:
    source, line, quoted, caret, hint = ERRORS[name]
    lines = explain_build(failure_of(backend, relu_record, source), source)
    at = next(i for i, text in enumerate(lines) if text.startswith(line))
    assert lines[at + 1].startswith("    " + quoted)
    assert lines[at + 2] == "    " + " " * caret + "^"
    assert (hint in lines[-1]) if hint else not lines[-1].startswith("hint")


def test_the_hint_names_the_very_variant(backend: Backend, relu_record: VariantRecord) -> None:
    source = 'extern "C" int launch(float* out) { return 0; }\n'
    failure = failure_of(backend, relu_record, source)
    hint = explain(failure, source=source, record=relu_record)[-1]
    assert f"`kforge op show {relu_record.variant.label} --prelude`" in hint


def test_an_error_in_a_header_names_the_line_that_led_to_it(backend: Backend, relu_record: VariantRecord) -> None:
    source = HEAD + "  struct S {} s[2];\n  std::sort(s, s + 2);\n  return 0;\n}\n"
    lines = explain_build(failure_of(backend, relu_record, source), source)
    assert any(text.startswith("line 3: no match for 'operator<'") for text in lines)
    assert "    std::sort(s, s + 2);" in lines


def test_no_launch_and_no_time(backend: Backend, relu_record: VariantRecord) -> None:
    source = "int f() { return 0; }\n"
    assert 'extern "C" int launch' in explain_build(failure_of(backend, relu_record, source), source)[-1]
    slow = BuildFailure(reason="build_timeout", detail="the compiler ran longer than 120 s")
    assert explain_build(slow, "")[1:] == (slow.detail, "hint: " + explain_build(slow, "")[-1].removeprefix("hint: "))
    assert "unroll less" in explain_build(slow, "")[-1]


def test_output_that_nobody_understands_is_shown_as_it_is() -> None:
    failure = BuildFailure(reason="compile_error", detail="\n".join(f"strange {i}" for i in range(40)))
    lines = explain_build(failure, "x")
    assert lines[:2] == ("does not build: compile_error", "strange 0")
    assert len(lines) <= MAX_LINES


def test_the_same_error_counts_once() -> None:
    detail = "kernel.cpp:2:1: error: no\nkernel.cpp:2:9: error: no\nkernel.cpp:3:1: error: no\ncollect2: error: ld"
    assert [(e.own_line, e.column) for e in compiler_errors(detail)] == [(2, 1), (3, 1)]


def test_lines_and_their_number_have_a_limit() -> None:
    detail = "\n".join(f"kernel.cpp:{i}:1: error: {'x' * 600} {i}" for i in range(1, 30))
    lines = explain(BuildFailure(reason="compile_error", detail=detail), source="y" * 700 + "\n" + "z\n" * 40)
    assert len(lines) <= MAX_LINES
    assert max(map(len, lines)) <= 400
    assert lines[0].endswith("29 errors")


@pytest.mark.nvcc
@pytest.mark.parametrize(
    ("change", "line", "hint"),
    [
        (("<<<1, 32>>>", "<<<1, many>>>"), 'line 3: identifier "many" is undefined', "the prelude declares"),
        (("out[0] = 1;", "__shared__ float t[99999]; t[threadIdx.x] = out[1]; out[0] = t[2];"),
         "ptxas error   : Entry function", "48 KiB"),
    ],
    ids=["name", "shared memory"],
)  # fmt: skip
def test_nvcc(settings: Settings, relu_record: VariantRecord, change: tuple[str, str], line: str, hint: str) -> None:
    source = (
        "__global__ void k(float* out) { out[0] = 1; }\n"
        'extern "C" int launch(const float* input, float* out, void* workspace, cudaStream_t stream) {\n'
        "  k<<<1, 32>>>(out);\n  return 0;\n}\n"
    ).replace(*change)
    lines = explain_build(failure_of(get_backend("cuda", settings, arch="sm_90"), relu_record, source), source)
    assert any(text.startswith(line) for text in lines), lines
    assert hint in lines[-1]
    if "many" in source:
        assert lines[2:4] == ("    k<<<1, many>>>(out);", "    " + " " * 7 + "^")
