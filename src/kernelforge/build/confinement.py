"""What a compiler may read on behalf of a candidate, and how to know what it did read. Pure, but for asking a compiler.

A candidate is one text. Whatever else gets into a build is the compiler's own, the system's, CUDA's or torch's: a file
of the user's would get into the binary, or through the compiler's words into the diagnosis and to a language model.
"""

from __future__ import annotations

import itertools
import os
import re
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path

from kernelforge.executors.kinds.process import bare_environment

_KEPT = (
    "COMPILER_PATH", "GCC_EXEC_PREFIX", "LIBRARY_PATH", "CPATH", "C_INCLUDE_PATH", "CPLUS_INCLUDE_PATH", "SDKROOT",
    "CUDA_HOME", "CUDA_PATH", "NVCC_CCBIN", "NVCC_PREPEND_FLAGS", "NVCC_APPEND_FLAGS", "CONDA_PREFIX",
    "CONDA_BUILD_SYSROOT", "CCACHE_DIR",
)  # fmt: skip
"""Where a tool chain finds its own parts: of conda, Nix, modules of clusters, a cache of compilations."""
_KEPT_BEGINNINGS = ("NIX_CC", "NIX_CFLAGS", "NIX_LDFLAGS", "NIX_BINTOOLS", "NIX_HARDENING")
WITHOUT = ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "CUDA_MODULE_LOADING")
"""What a process that runs kernels needs, and a compiler does not."""

_TRACE = re.compile(r"^\.+[!x]? (.+)$", re.MULTILINE)
_SEARCHED = re.compile(r'^#include ["<]\.\.\.[">] search starts here:\n(.*?)^End of search list', re.DOTALL | re.M)
_SPLICE = re.compile(r"(?:\\|\?\?/)[ \t\r]*\n")
_EMBED = re.compile(r"(?:#|%:|\?\?=)(?:\s|/\*.*?\*/)*embed\b", re.DOTALL)
_DIRECTIVE = re.compile(r"^[ \t\f\v]*(?:#|%:|\?\?=)[ \t\f\v]*(?:include|import|embed)", re.MULTILINE)
_DATA = re.compile(r'^\s*\.(?:string|ascii|asciz|base64)\s+"(?:[^"\\\n]|\\.)*"\s*$', re.MULTILINE)
_ASSEMBLER = re.compile(r"(?<![\w.$/])\.(?:incbin|include|macro|irpc?|altmacro)\b", re.IGNORECASE)


def compiler_environment(scratch: Path) -> dict[str, str]:
    """The whole environment of a compiler: no key, token or folder of the user; temporary files go to `scratch`."""
    # None of these is a setting of ours.
    names = [name for name in os.environ if name in _KEPT or name.startswith(_KEPT_BEGINNINGS)]
    bare = {name: value for name, value in bare_environment().items() if name not in WITHOUT}
    own = {"HOME": str(scratch), "TMPDIR": str(scratch)}
    return bare | {name: os.environ[name] for name in names} | own


def tracing_flags(compiler: Path, suffix: str) -> tuple[str, ...]:
    """What makes a compiler name every file that it includes, and keep what the assembler gets of CUDA's host side.

    `-MMD` alone is not told of everything: a source can pass its lines off as those of a system header. clang's own
    assembler would follow directives before anybody has seen them.
    """
    clang = ("-Xclang", "-sys-header-deps", "-fno-integrated-as") if _searched(compiler, suffix)[1] else ()
    if suffix == ".cu":
        return ("--keep", "-Xcompiler", ",".join(("-H", "-save-temps", *clang)))
    return ("-H", *clang)


def traced_files(log: str) -> list[str]:
    """The files that a compiler with the `tracing_flags` opened, in order. A source can add names, and hide none."""
    return _TRACE.findall(log)


def dependency_files(dependencies: Path, unit: str) -> list[str]:
    """What a file of `-MMD` lists; it is removed.

    Args:
        unit: file of the candidate. nvcc also lists what `#line` names: parts of the unit, and no files.
    """
    if not dependencies.is_file():
        return []
    words = re.findall(r"(?:\\\S|\\ |[^\s\\])+", dependencies.read_text(errors="replace"))
    dependencies.unlink()
    _, _, *names = [word for word in words if word != ":"] or ["", ""]  # the target and the unit itself
    return [name for name in names if name != unit and (dependencies.parent / name).exists()]


def first_outside(names: Iterable[str], scratch: Path, folders: Sequence[Path]) -> str:
    """The first file that is neither in the scratch nor below one of the folders; "" if there is none."""
    return next((name for name in names if not is_inside(name, scratch, folders)), "")


def is_inside(name: str, scratch: Path, folders: Sequence[Path]) -> bool:
    try:
        path = (scratch / name).resolve()
    except (OSError, RuntimeError, ValueError):
        return False
    return any(path.is_relative_to(folder) for folder in (scratch.resolve(), *folders))


def header_folders(compiler: Path, suffix: str, commands: Sequence[Sequence[str]]) -> tuple[Path, ...]:
    """Where headers may come from: what the compiler searches by itself, and the folders of the commands."""
    given = [Path(b) for command in commands for a, b in itertools.pairwise(command) if a == "-isystem"]
    return (*_searched(compiler, suffix)[0], *(folder.resolve() for folder in given))


@cache
def _searched(compiler: Path, suffix: str) -> tuple[tuple[Path, ...], bool]:
    """The folders that a compiler, or nvcc's, searches by itself for headers, as it says; and whether it is clang."""
    language = ("-Xcompiler", "-v", "-x", "cu") if suffix == ".cu" else ("-v", "-x", "c++")
    with tempfile.TemporaryDirectory() as scratch:
        done = subprocess.run(
            [str(compiler), *language, "-E", "/dev/null"], stdin=subprocess.DEVNULL, capture_output=True, text=True,
            errors="replace", check=False, timeout=60, env=compiler_environment(Path(scratch)),
        )  # fmt: skip
    lines = [line.strip() for block in _SEARCHED.findall(done.stderr + done.stdout) for line in block.splitlines()]
    found = {Path(line.removesuffix(" (framework directory)")).resolve(): None for line in lines if line[:1] == "/"}
    return tuple(folder for folder in found if folder != Path("/")), "clang version" in done.stderr


def embeds_files(source: str) -> bool:
    """Whether a source may have `#embed`, of which no compiler tells; wherever it stands, a comment included."""
    return _EMBED.search(_SPLICE.sub("", source)) is not None


def makes_directives(folder: Path) -> bool:
    """Whether a preprocessed text that nvcc kept has directives: its own front end would follow them."""
    return any(_DIRECTIVE.search(text) for text in _texts(folder, "*.cpp[0-9].ii"))


def assembler_reads_files(folder: Path) -> bool:
    """Whether what the assembler gets, or got, includes files, or has means to make directives that do.

    It is looked at as the compiler wrote it: inline assembly, names of sections and of symbols are all in there, with
    literals joined, escapes, operands and dialects in place.
    """
    return any(_ASSEMBLER.search(_DATA.sub("", text)) for text in _texts(folder, "*.s"))


def _texts(folder: Path, pattern: str) -> Iterator[str]:
    for path in folder.glob(pattern):
        yield path.read_text(errors="replace")
