"""What a failed build says, cut down to the causes: each with the candidate's own line and what usually helps. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

from kernelforge.build.torch_abi import is_torch_source
from kernelforge.build.types import BuildFailure

MAX_ERRORS = 4
"""Later errors are mostly echoes of the first ones."""
_RAW_LINES = 12

_GCC = re.compile(r"^(?P<file>[^\s:()]+):(?P<line>\d+):(?:(?P<column>\d+):)? (?:fatal )?error: (?P<text>.*)$")
_EDG = re.compile(r"^(?P<file>[^\s:()]+)\((?P<line>\d+)\): (?:catastrophic )?error(?: #\S+)?: (?P<text>.*)$")
_TOOL = re.compile(
    r"^(?:ptxas (?:error|fatal)|nvcc (?:error|fatal)|\S*ld(?:\.\w+)?:|collect2: error|.*undefined reference)"
)
_OWN_LINE = re.compile(r"\bkernel\.(?:cpp|cu)[:(](\d+)")
_EDG_INDENT = 2
"""EDG prints the line that it complains of after so many blanks."""

_HINTS = (
    (r"conflicting declaration.*\blaunch\b|ambiguating.*\blaunch\b|\blaunch\b.*(?:incompatible|already|overload)",
     "the signature of launch must be that of the prelude: `kforge op show {variant} --prelude` prints it"),
    (r"uses too much shared data",
     "static shared memory ends at 48 KiB; take a smaller tile, or dynamic shared memory with cudaFuncSetAttribute"),
    (r"was not declared|is undefined|has not been declared|is not a member of|No such file",
     "the prelude declares the constants of the variant and includes the common headers only; define or include "
     "everything else above its use"),
    (r"undefined reference|undefined symbol",
     "everything must be in this one source; no libraries are linked besides the compiler's own"),
    (r"redefinition|redeclar|already been defined",
     "the prelude and the generated entry take the names kf, v, kforge_* and __tvm_ffi_*; choose others"),
    (r"no matching function|cannot convert|incompatible|invalid conversion|no suitable|no operator|no match for",
     "look at the types: float16 and bfloat16 arrive as uint16_t in C++ and as __half and __nv_bfloat16 in CUDA"),
    (r"expected", "a syntax error: look at the line above the quoted one too"),
)  # fmt: skip
_REASONS = {
    "missing_launch": 'define extern "C" int launch(...) with the signature of `kforge op show {variant} --prelude`',
    "build_timeout": "unroll less and instantiate fewer templates; the compiler ran out of its time",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class CompilerError:
    """One error. own_line: 1-based line of the candidate's source that it is about; 0 if it names none."""

    text: str
    own_line: int = 0
    column: int = 0


def explain_build(failure: BuildFailure, source: str, variant: str = "VARIANT") -> tuple[str, ...]:
    """The causes of a failed build, at most `MAX_ERRORS` with the source lines they quote, and one hint.

    Args:
        source: of the candidate, whose lines the compiler counts. variant: its name, for commands in the hint.
    """
    errors = compiler_errors(failure.detail)
    count = "" if len(errors) <= 1 else f", {len(errors)} errors"
    lines = [f"does not build: {failure.reason}{count}"]
    for error in errors[:MAX_ERRORS]:
        lines += _error_lines(error, source.splitlines())
    if not errors:
        lines += failure.detail.splitlines()[:_RAW_LINES]
    if hint := _torch_hint(failure) if is_torch_source(source) else _hint(failure, errors):
        lines.append(f"hint: {hint.replace('{variant}', variant)}")
    return tuple(lines)


def compiler_errors(detail: str) -> tuple[CompilerError, ...]:
    """The distinct errors in the output of g++, clang++, nvcc, ptxas or a linker, in order."""
    lines = detail.splitlines()
    found: dict[tuple[str, int], CompilerError] = {}
    for index, line in enumerate(lines):
        error = _error_at(lines, index)
        if error is not None and not line.startswith("collect2"):
            found.setdefault((error.text, error.own_line), error)
    return tuple(found.values())


def _error_at(lines: list[str], index: int) -> CompilerError | None:
    line = lines[index]
    match = _GCC.match(line) or _EDG.match(line)
    if match is None:
        return CompilerError(text=line.strip()) if _TOOL.match(line) else None
    text, number = match["text"], int(match["line"])
    if not match["file"].rpartition("/")[2].startswith("kernel."):
        return CompilerError(text=text, own_line=_instantiated_at(lines, index))
    column = int(match.groupdict().get("column") or 0) or _edg_column(lines[index + 1 : index + 3])
    return CompilerError(text=text, own_line=number, column=column)


def _instantiated_at(lines: list[str], index: int) -> int:
    """The candidate's line that led to an error elsewhere: the nearest one named around it, above before below."""
    for other in (*reversed(lines[:index]), *lines[index + 1 :]):
        if _GCC.match(other) or _EDG.match(other):
            break
        if match := _OWN_LINE.search(other):
            return int(match[1])
    return 0


def _edg_column(below: list[str]) -> int:
    caret = below[1] if len(below) == 2 else ""
    return caret.index("^") - _EDG_INDENT + 1 if caret.strip() == "^" else 0


def _error_lines(error: CompilerError, source: list[str]) -> list[str]:
    if not 1 <= error.own_line <= len(source):
        return [error.text]
    # Compilers count the columns of a line whose tabs are expanded.
    quoted = source[error.own_line - 1].expandtabs(8).rstrip()
    shown = quoted.lstrip()
    lines = [f"line {error.own_line}: {error.text}", f"    {shown}"]
    at = error.column - 1 - (len(quoted) - len(shown))
    if error.column and 0 <= at <= len(shown):
        lines.append("    " + " " * at + "^")
    return lines


def _torch_hint(failure: BuildFailure) -> str:
    """Of a source of the torch ABI, which has no prelude."""
    if failure.reason in ("missing_launch", "wrong_signature"):
        return "torch::Tensor launch(...) takes the operator's arguments in their order, see docs/abi.md"
    return ""


def _hint(failure: BuildFailure, errors: tuple[CompilerError, ...]) -> str:
    if failure.reason in _REASONS:
        return _REASONS[failure.reason]
    text = errors[0].text if errors else failure.detail
    return next((hint for pattern, hint in _HINTS if re.search(pattern, text)), "")
