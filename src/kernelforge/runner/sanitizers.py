"""What memory checkers around or in the runner print, and where NVIDIA's is found. Pure but for `find_sanitizer`.

A report becomes one sentence: what, where in the kernel, and how far beyond which buffer. Both kinds of checkers run on
`exact` buffers, so that the allocation that they name is one buffer of the call, told by its size.
"""

from __future__ import annotations

import importlib.util
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

from kernelforge.settings import Settings

ASAN, UBSAN = "AddressSanitizer", "UndefinedBehaviorSanitizer"
CUDA_TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")
ERROR_EXIT = 86
"""The exit status that asks for attention: neither the runner nor a crash gives it."""

_LIMIT = 500
_RULE = "========="
_FINDING = re.compile(
    r"(?:Error: |ERROR: |Fatal: )?(Invalid |Uninitialized |Race reported |Barrier error |Potential .* hazard"
    r"|Misaligned |Divergent thread|Malloc/Free error|Stack overflow|Illegal |Program hit |Missing wait)"
)
_ENDS_DETAIL = ("Saved host backtrace", "Host Frame", "Device Frame", "Current Value")
_SUMMARY = re.compile(r"ERROR SUMMARY: (\d+) error|RACECHECK SUMMARY: \d+ hazards? displayed \((\d+) error")
_CANDIDATE = r"kernel\.(?:cpp|cu)"


def sanitizer_command(sanitizer: Path, tool: str) -> tuple[str, ...]:
    """compute-sanitizer with one of `CUDA_TOOLS`, to be put before a program's own command line."""
    command = (
        str(sanitizer), "--tool", tool, "--error-exitcode", str(ERROR_EXIT), "--print-limit", "10",
        "--show-backtrace", "no",
        # A candidate may probe the device, and the run time probes the driver: failing calls are no memory errors.
        "--report-api-errors", "no",
    )  # fmt: skip
    # Warnings are of hazards within one warp that do no harm, as CUB's own reductions have them.
    return (*command, "--racecheck-detect-level", "error") if tool == "racecheck" else command


def find_sanitizer(settings: Settings) -> Path | None:
    """compute-sanitizer from the PATH, CUDA_HOME, the toolkit of nvcc, or its PyPI wheel; None if it is nowhere."""
    return next((place for place in _places(settings) if place.is_file()), None)


def _places(settings: Settings) -> Iterator[Path]:
    name = "compute-sanitizer"
    found = shutil.which(name)
    if found:
        yield Path(found)
    nvcc = shutil.which(settings.nvcc or "nvcc")
    beside = [Path(nvcc).parent, Path(nvcc).resolve().parent] if nvcc else []
    home = [Path(settings.cuda_home) / "bin"] if settings.cuda_home else []
    for folder in [*home, *beside, Path("/usr/local/cuda/bin")]:
        yield folder / name
        yield folder.parent / name / name
    spec = importlib.util.find_spec("nvidia")
    for root in spec.submodule_search_locations or [] if spec else []:
        for part in ("cu13", "cuda_sanitizer_api", "cu12"):
            yield Path(root) / part / "bin" / name
            yield Path(root) / part / name / name


def asan_error(output: str, sizes: Mapping[str, int]) -> tuple[str, str] | None:
    """The tool and the first error in what an instrumented process has printed, or None if it reports none.

    Args:
        sizes: of the call's buffers by name, bytes.
    """
    undefined = re.search(r"^(\S+): runtime error: (.*)$", output, re.MULTILINE)
    if undefined:
        place = undefined[1] if re.search(_CANDIDATE, undefined[1]) else _own_line(output[undefined.end() :])
        return UBSAN, _clip(undefined[2] + _at(place or undefined[1]))
    head = re.search(r"ERROR: AddressSanitizer: (.*)$", output, re.MULTILINE)
    if not head:
        return None
    rest = output[head.end() :]
    parts = [re.split(r" on (?:unknown )?address| \(pc | in thread", head[1])[0].strip()]
    access = re.search(r"^(READ|WRITE) of size (\d+)", rest, re.MULTILINE)
    if access:
        parts.append(f"{access[1].lower()} of {access[2]} bytes")
    text = ": ".join(parts) + _at(_own_line(rest))
    heap = re.search(r"is located (\d+ bytes) (to the right of|to the left of|after|before|inside of) (\d+)-byte", rest)
    if heap:
        words = {"to the right of": "after", "to the left of": "before", "inside of": "inside"}
        text += f", {heap[1]} {words.get(heap[2], heap[2])} a buffer of {heap[3]} bytes{_named(int(heap[3]), sizes)}"
    local = re.search(r"'(\w+)'(?: \(line \d+\))? <== Memory access at offset \d+ (.*?) this variable", rest)
    if local:
        text += f", {local[2]} the local variable {local[1]}"
    return ASAN, _clip(text)


def cuda_error(output: str, sizes: Mapping[str, int]) -> str:
    """The first error of a compute-sanitizer report, or "" if none has been reported so far."""
    lines = [line.removeprefix(_RULE) for line in output.splitlines() if line.startswith(_RULE)]
    for position, line in enumerate(lines):
        if _FINDING.match(line.strip()) and not line.startswith("    "):
            details = []
            for detail in lines[position + 1 :]:
                if not detail.startswith("    ") or detail.strip().startswith(_ENDS_DETAIL):
                    break
                details.append(" ".join(detail.split()))
            text = " ".join([re.sub(r"^(?:Error|ERROR|Fatal): ", "", line.strip()), *details])
            size = re.search(r"allocation at 0x[0-9a-f]+ of size ([\d,]+) bytes", text)
            return _clip(text + (_named(int(size[1].replace(",", "")), sizes) if size else ""))
    return ""


def cuda_errors(output: str) -> int | None:
    """How many errors a finished compute-sanitizer counted, or None if it did not come to its end."""
    # The last one: the program that it ran may print whatever it likes before.
    found = list(_SUMMARY.finditer(output))
    return int(found[-1][1] or found[-1][2]) if found else None


def trouble(output: str, detail: str) -> str:
    """Why a checker gave no result: its own last words, else how the process ended."""
    lines = [line.removeprefix(_RULE).strip() for line in output.splitlines()]
    said = [line for line in lines if re.search(r"\b(error|unable|not supported|failed|cannot)\b", line, re.IGNORECASE)]
    return _clip(f"{detail}: {said[0]}" if said else detail)


def _own_line(text: str) -> str:
    """The first place of a stack that is in the candidate's own file."""
    found = re.search(rf"({_CANDIDATE}:\d+)", text)
    return found[1] if found else ""


def _at(place: str) -> str:
    return f" at {Path(place).name}" if place else ""


def _named(size: int, sizes: Mapping[str, int]) -> str:
    names = [name for name, known in sizes.items() if known == size]
    return f" ({' or '.join(names)})" if names else ""


def _clip(text: str) -> str:
    return text if len(text) <= _LIMIT else text[: _LIMIT - 4] + " ..."
