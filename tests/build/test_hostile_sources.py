"""A candidate's source that would read files or variables of this machine through its build, failed or not."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.build.test_build import DOUBLE, VARIANT, candidate
from tests.cli.test_judgement import relu_record

from kernelforge.build.backends import get_backend
from kernelforge.build.confinement import assembler_reads_files, compiler_environment, embeds_files
from kernelforge.build.diagnosis import Words
from kernelforge.build.types import Artifact, BuildFailure
from kernelforge.settings import load_settings

SECRET = "PRIVATEWORD"
KEY = "gsk_AbCdEfGhIjKlMnOpQrSt0123"
TORCH = "#include <torch/extension.h>\n{}\ntorch::Tensor launch(torch::Tensor input) {{ return input * 2; }}\n"

READS = {
    "include": '#include "{file}"',
    "include in brackets": "#include <{file}>",
    "include by a macro": '#define HERE "{file}"\n#include HERE',
    "include as of a system header": '# 1 "kernel.cpp" 3\n#include "{file}"',
    "include through the system's folders": "#include </usr/include/../..{file}>",
    "include in an enumeration": 'enum E {{\n#include "{file}"\n}};\nstatic_assert(PRIVATEWORD > 1, "no");',
    "include of the environment": '#include "/proc/self/environ"',
    "include by a link": '#include "{link}"',
    "next": "#include_next <{file}>",
    "import": '#import "{file}"',
    "embed": 'constexpr char a[] = {{\n#embed "{file}"\n}};\nint x = a;',
    "line": '#line 1 "{file}"\nint x = undeclared;',
    "marker": '# 1 "{file}"\nint x = undeclared;',
    "warning and line": '#line 1 "{file}"\n#warning look\n#line 9 "kernel.cpp"',
    "assembler": '__asm__(".include \\"{file}\\"\\n");',
    "assembler in a raw string": '__asm__(".inc" R"(lude)" " \\"{file}\\"\\n");',
    "assembler by a name of a letter": '__asm__("\\u002einclude \\"{file}\\"\\n");',
    "assembler of a dialect": 'void f() {{ asm volatile(".inc{{lude|x}} \\"{file}\\"" ::); }}',
    "assembler by a section": '__attribute__((section("x\\n.include \\"{file}\\"\\n#"))) int z = 1;',
    "assembler by a label": 'extern "C" int q() asm("q\\n.include \\"{file}\\"\\n#");\nint q() {{ return 1; }}',
    "environment": '__asm__(".include \\"/proc/self/environ\\"\\n.quad SOME_KEY - zzz\\n");',
    "bytes": '__asm__(".pushsection .rodata\\n.incbin \\"{file}\\"\\n.popsection");',
    "own header": '#include "{file}"\nint x = ;',
}
ONLY_NVCC = {
    "include on one side": '#ifndef __CUDA_ARCH__\n#include "{file}"\n#endif',
    "include on the other side": '#ifdef __CUDA_ARCH__\n#include "{file}"\n#endif',
    "include that is none before macros": '#define H #\nH include "{file}"',
    "include behind nothing": '#define E\nE # include "{file}"',
    "ptx": '__global__ void k() {{ asm("\\n#include \\"{file}\\"\\n"); }}',
    "ptx include": '__global__ void k() {{ asm(".include \\"{file}\\""); }}',
}


SHORT = {"include", "include on one side", "include that is none before macros", "assembler", "environment", "ptx"}
LONG = bool(os.environ.get("KFORGE_LONG"))


@pytest.fixture(params=["g++", "clang++", pytest.param("nvcc", marks=pytest.mark.nvcc)])
def compiler(request: pytest.FixtureRequest) -> Iterator[str]:
    if shutil.which(request.param) is None:
        pytest.skip(f"{request.param} is not installed")
    yield request.param


def build_with(compiler: str, source: str, cache: Path) -> Artifact | BuildFailure:
    cuda = compiler == "nvcc"
    variables = {"KFORGE_CACHE_DIR": str(cache)} | ({} if cuda else {"KFORGE_CXX": compiler})
    backend = get_backend("cuda" if cuda else "cpp", load_settings(variables), arch="sm_90" if cuda else "")
    body = DOUBLE.replace("void* workspace)", "void* workspace, cudaStream_t stream)") if cuda else DOUBLE
    return backend.build(candidate(source + "\n" + body, backend="cuda" if cuda else "cpp"), VARIANT)


def leaks(outcome: Artifact | BuildFailure, cache: Path) -> list[str]:
    said = outcome.detail if isinstance(outcome, BuildFailure) else outcome.log
    files = {str(path): path.read_bytes() for path in cache.rglob("*") if path.is_file()}
    held = {"the outcome": said.encode(), **files}
    # Assemblers quote in small letters.
    words = (SECRET.lower(), KEY.lower())
    return [f"{word} in {name}" for name, text in held.items() for word in words if word.encode() in text.lower()]


@pytest.mark.parametrize("name", [*READS, *ONLY_NVCC])
def test_no_build_reads_files_of_this_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compiler: str, name: str
) -> None:
    if name in ONLY_NVCC and compiler != "nvcc":
        pytest.skip("of nvcc")
    if compiler == "nvcc" and name not in SHORT and not LONG:
        pytest.skip("one of many that take seconds each with nvcc; `make build-test` has them all")
    # The first of few, so that an assembler takes it for an assignment.
    monkeypatch.setattr(os, "environ", {"SOME_KEY": KEY, "PATH": os.environ["PATH"]})
    # One that would compile in an enumeration, and is nonsense elsewhere.
    (tmp_path / "file.h").write_text(f"{SECRET}\n")
    (tmp_path / "link.h").symlink_to(tmp_path / "file.h")
    form = {**READS, **ONLY_NVCC}[name]
    source = form.format(file=tmp_path / "file.h", link=tmp_path / "link.h")
    outcome = build_with(compiler, source, tmp_path / "cache")
    # The source itself names what it knows; the rest of the file is what nobody told it.
    if SECRET in source:
        (found,) = [outcome.detail] if isinstance(outcome, BuildFailure) else [""]
        assert "includes" in found and SECRET not in found
    else:
        assert leaks(outcome, tmp_path / "cache") == []


@pytest.mark.slow
@pytest.mark.parametrize("name", ["include", "line", "assembler by a section", "environment"])
def test_nor_does_one_of_the_torch_abi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(os, "environ", {"SOME_KEY": KEY, **os.environ})
    (tmp_path / "file.h").write_text(f"{SECRET}\n")
    variant = relu_record("").variant
    source = TORCH.format(READS[name].format(file=tmp_path / "file.h", link=""))
    settings = load_settings({"KFORGE_CACHE_DIR": str(tmp_path / "cache")})
    outcome = get_backend("cpp", settings).build(candidate(source, variant), variant)
    assert leaks(outcome, tmp_path / "cache") == []
    assert isinstance(outcome, BuildFailure)


def test_a_failed_build_that_read_a_file_is_told_so(tmp_path: Path, compiler: str) -> None:
    (tmp_path / "file.h").write_text(f"{SECRET} nonsense\n")
    outcome = build_with(compiler, f'#include "{tmp_path}/file.h"\nint x = ;', tmp_path / "cache")
    assert isinstance(outcome, BuildFailure) and outcome.reason == "compile_error"
    assert "file.h, a file of this machine" in outcome.detail and "\n" not in outcome.detail


def test_a_file_that_is_not_there_is_no_secret(tmp_path: Path, compiler: str) -> None:
    outcome = build_with(compiler, '#include "cutlass/cutlass.h"', tmp_path / "cache")
    assert isinstance(outcome, BuildFailure) and "cutlass/cutlass.h" in outcome.detail
    assert "kernel." in outcome.detail


def test_an_instruction_that_does_not_exist_is_named_by_its_line(tmp_path: Path) -> None:
    outcome = build_with(
        "g++", '\nstatic inline void f() { asm volatile("nosuch %eax"); }\nvoid g() { f(); }', tmp_path
    )
    assert isinstance(outcome, BuildFailure)
    assert outcome.detail == "kernel.cpp:2: error: the assembler does not take this inline assembly"


def test_what_a_compiler_sees_of_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_KEY", KEY)
    monkeypatch.setenv("NVCC_PREPEND_FLAGS", "-ccbin=x86_64-conda-linux-gnu-c++")
    seen = compiler_environment(tmp_path)
    assert KEY not in seen.values() and (seen["HOME"], seen["TMPDIR"], seen["LC_ALL"]) == (*[str(tmp_path)] * 2, "C")
    assert seen["NVCC_PREPEND_FLAGS"] == "-ccbin=x86_64-conda-linux-gnu-c++"


def test_a_compiler_behind_a_wrapper_is_found_and_works(tmp_path: Path) -> None:
    """As those of ccache and conda, which are scripts or links by another name."""
    wrapper = tmp_path / "wrapped-c++"
    wrapper.write_text(f'#!/bin/sh\nmkdir -p "$HOME/.cache/wrapped" && exec {shutil.which("g++")} "$@"\n')
    wrapper.chmod(0o755)
    assert isinstance(build_with(str(wrapper), "", tmp_path / "cache"), Artifact)


def test_embedding_is_seen_wherever_it_is_split() -> None:
    assert embeds_files('#emb\\\ned "x"') and embeds_files('%: /* " */ embed <x>') and embeds_files("??=embed <x>")
    assert not embeds_files("// # of embeddings\nint embed = 1;")


@pytest.mark.parametrize(
    ("text", "reads"),
    [
        ('\t.include "x"\n', True), ('a:.INCBIN "x"', True), ("nop;.macro x", True), (".altmacro", True),
        ('\t.string\t".include \\"x\\""\n', False), ("\t.section .text.include\n", False),
        ('\t.file 3 "/usr/./include/x.macro"\n', False),
    ],
)  # fmt: skip
def test_directives_of_the_assembler(tmp_path: Path, text: str, reads: bool) -> None:
    (tmp_path / "kernel.s").write_text(text)
    assert assembler_reads_files(tmp_path) == reads


def test_words_about_other_files_and_their_paths_are_left_out(tmp_path: Path) -> None:
    allowed = tmp_path / "include"
    allowed.mkdir()
    (tmp_path / "s").mkdir()
    words = Words(source="int a;\nint b = c;\n", suffix=".cpp", scratch=tmp_path / "s", folders=(allowed,))
    log = (
        f"In file included from {tmp_path}/x.h:1:\n{tmp_path}/x.h:3:1: error: 'PRIVATEWORD' does not name a type\n"
        "    3 | PRIVATEWORD\n      | ^~~~\n"
        "kernel.cpp:2:9: error: 'c' was not declared\n    2 | PRIVATEWORD = 1\n      |         ^\n"
        f"{allowed}/y.h:1:2: note: as in {tmp_path}/x.h and {allowed}/y.h\n   1 | PRIVATEWORD\n"
        "kernel.cpp:2: Error: no such instruction: `PRIVATEWORD'\n"
        "ptxas error   : Entry function 'k' uses too much shared data\n"
        f"{tmp_path}/x.h(1): error: PRIVATEWORD\n  PRIVATEWORD\n  ^\n\n"
        'kernel.cpp(2): error: identifier "c" is undefined\n  PRIVATEWORD\n          ^\n          detected here\n'
        "PRIVATEWORD\n"
    )
    assert words.of_compiler(log).split("\n") == [
        "kernel.cpp:2:9: error: 'c' was not declared",
        "    2 | int b = c;",
        "      |         ^",
        f"{allowed}/y.h:1:2: note: as in [a path] and {allowed}/y.h",
        "ptxas error   : Entry function 'k' uses too much shared data",
        'kernel.cpp(2): error: identifier "c" is undefined',
        "  int b = c;",
        "          ^",
        "          detected here",
    ]
