"""Which of a compiler's words are kept: those about the candidate's own text and the headers that it may include. Pure.

Compilers quote lines of whichever file `#line` names, and assemblers those of any file that they are told to include.
So nothing is kept but what is known to be about the right file; lines are quoted here, from the candidate's source.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from kernelforge.build.confinement import is_inside

_DETAIL_LINES = 25
_AT = re.compile(
    r"^(?P<file>[^\s:()<>][^:()]*)(?::(?P<line>\d+)(?::(?P<column>\d+))?|\((?P<edg>\d+)\))?: (?P<text>.*)$"
)
_TEXT = re.compile(
    r"(?:fatal |catastrophic |internal compiler )?(?:error|warning|note|remark|sorry, unimplemented)\b"
    r"|\s*(?:In|At|required|recursively required|in|from)\b"
)
_UNPLACED = re.compile(
    r"ptxas |nvlink (?:error|fatal|warning|info)|nvcc (?:error|fatal|warning)|\s+\d+ bytes (?:stack|gmem|smem|cmem)"
    r"|\d+ (?:error|warning|catastrophic error)s? .*detected in the compilation of"
    r"|(?:cc1plus|collect2|[\w+-]*(?:g\+\+|clang)[\w+.-]*|c\+\+): (?:fatal error|error|warning|internal compiler error)"
)
_LINKER = re.compile(
    r"undefined (?:reference to|symbol:?) |multiple definition of |first defined here|relocation \S+ against "
    r"|hidden symbol |collect2: |ld returned |in function `|cannot find -l"
)
_TOOL = re.compile(r"^/\S*/((?:\S+-)?ld(?:\.\w+)?|ptxas|nvlink|cc1plus)(?=:)")
_ASSEMBLER_LINE = re.compile(r"^kernel\.\w+:(\d+)(?::\d+)?: (?:Error|error|Fatal error|Warning|Info):?", re.MULTILINE)
_PATH = re.compile(r"(?<![\w.)\]/])/(?:[\w.+@%~-]+/)*[\w.+@%~-]+")
_CARET = re.compile(r"^\s+\^\s*$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Words:
    """Keeps of a compiler's output what may be kept.

    Attributes:
        source: the candidate's. suffix: of its file. scratch: the folder of the build. folders: of allowed headers.
    """

    source: str
    suffix: str
    scratch: Path
    folders: Sequence[Path]

    def of_compiler(self, log: str) -> str:
        """Diagnostics of a compiler or of a CUDA tool, in its form, with lines of the candidate quoted from it."""
        # Not `splitlines`: it also ends lines where compilers do not.
        return "\n".join(self._without_paths(line) for line in self._kept(log.split("\n")))

    def of_linker(self, log: str) -> str:
        lines = (_TOOL.sub(r"\1", line) for line in log.split("\n") if _LINKER.search(line))
        return "\n".join(self._without_paths(line) for line in lines)

    def of_assembler(self, log: str) -> str:
        """That the assembler complained, and of which lines; nothing of what it said."""
        numbers = sorted({int(number) for number in _ASSEMBLER_LINE.findall(log)})
        said = "error: the assembler does not take this inline assembly"
        if not numbers:
            return "the assembler does not take the inline assembly"
        lines = (f"kernel{self.suffix}:{number}: {said}" for number in numbers[:_DETAIL_LINES])
        return "\n".join(lines)

    def of_assembler_or_nothing(self, log: str) -> str:
        return self.of_assembler(log) if log.strip() else ""

    def _kept(self, lines: list[str]) -> Iterator[str]:
        inside, own_line, by_edg = False, 0, False
        for index, line in enumerate(lines):
            at = _AT.match(line)
            if _UNPLACED.match(line):
                inside = False
                yield line
            elif at and not line[0].isspace():
                inside = bool(_TEXT.match(at["text"])) and self._may_be_quoted(at["file"])
                own_line = int(at["line"] or at["edg"] or 0) if self._is_own(at["file"]) else 0
                by_edg = at["edg"] is not None
                if inside:
                    yield line
                    yield from () if by_edg else self._quoted(own_line, int(at["column"] or 0))
            elif line and not line[0].isspace():
                inside = False
            elif inside and by_edg and index + 1 < len(lines) and _CARET.match(lines[index + 1]):
                yield from self._quoted_as_edg(own_line, lines[index + 1])
            elif inside and by_edg and line.strip() and not _CARET.match(line):
                yield line

    def _may_be_quoted(self, file: str) -> bool:
        return self._is_own(file) or is_inside(file, self.scratch, self.folders)

    def _is_own(self, file: str) -> bool:
        return file.removeprefix(f"{self.scratch}/") == f"kernel{self.suffix}"

    def _line(self, number: int) -> str:
        lines = self.source.split("\n")
        # Compilers count the columns of a line whose tabs are expanded.
        return lines[number - 1].expandtabs(8).rstrip() if 1 <= number <= len(lines) else ""

    def _quoted(self, number: int, column: int) -> Iterator[str]:
        text = self._line(number)
        if text:
            yield f"{number:5} | {text}"
            if 0 < column <= len(text) + 1:
                yield f"      | {' ' * (column - 1)}^"

    def _quoted_as_edg(self, number: int, caret: str) -> Iterator[str]:
        text = self._line(number)
        if text:
            yield f"  {text}"
            if caret.index("^") <= len(text) + 2:
                yield caret.rstrip()

    def _without_paths(self, line: str) -> str:
        return _PATH.sub(self._path, line.replace(f"{self.scratch}/", ""))

    def _path(self, match: re.Match[str]) -> str:
        path = match[0]
        root = Path("/", path.split("/")[1])
        # What only looks like a path, such as a division, stays.
        return path if is_inside(path, self.scratch, self.folders) or not root.exists() else "[a path]"


def trim_errors(log: str) -> str:
    """The first errors of a compiler's output, without include stacks and with the source lines they quote."""
    lines = log.split("\n")
    first = next((i for i, line in enumerate(lines) if re.search(r"\b(error|undefined)\b", line)), 0)
    kept = [
        line for line in lines[first:] if line and not line.startswith(("In file included from", " " * 17 + "from"))
    ]
    more = len(kept) - _DETAIL_LINES
    return "\n".join(kept[:_DETAIL_LINES]) + (f"\n... {more} more lines" if more > 0 else "")
