"""What is inside of a built binary: its sections, its own functions, and its GPU kernels. Reads files, runs nothing.

The ELF reader of `audit` follows what the loader sees; this one follows the section headers, which a hostile binary may
lack or forge: what it finds is shown beside the audit, and decides nothing. GPU kernels come from `cuobjdump` where it
is installed, else from the host's stubs in the symbol table.
"""

from __future__ import annotations

import re
import shutil
import struct
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from kernelforge.audit.elf import ElfError

_SHT_SYMTAB, _SHT_NOBITS = 2, 8
_STT_FUNC = 2
_NOT_OWN = re.compile(
    r"^(?:_init|_fini|_start|frame_dummy|_dl_relocate_static_pie|(?:de)?register_tm_clones|__do_global_\w+|atexit|"
    r"(?:__|lib)cudart\w*|(?:__)?(?:cuda|nv)[A-Z_]\w*|_ZL\d+__(?:sti____)?(?:cuda|nv)\w*|kforge_\w+|"
    r"__tvm_ffi_\w+|.*__device_stub__.*|.*\.cold)$"
)
_RESOURCE_FUNCTION = re.compile(r"^\s*Function (\S+):\s*$", re.MULTILINE)
_TOOL_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A section of the file. size_bytes: in memory."""

    name: str
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Function:
    """A function that the binary defines, by its name there."""

    name: str
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """What a binary holds.

    Attributes:
        sections: in order, those with a size.
        functions: defined by the candidate, largest first: without the run times that are linked in and the glue.
        kernels: names of the `__global__` functions; empty on the CPU.
        kernel_source: where those names come from, or why there are none.
    """

    sections: tuple[Section, ...]
    functions: tuple[Function, ...]
    kernels: tuple[str, ...]
    kernel_source: str


def read_contents(path: Path, *, device: str, cuobjdump: Path | None = None) -> Contents:
    """Look into a shared object.

    Args:
        device: "cpu" or "cuda". cuobjdump: NVIDIA's tool, if it is installed.

    Raises:
        ElfError: the section headers do not parse. OSError: the file cannot be read.
    """
    data = path.read_bytes()
    try:
        sections = [*_sections(data)]
        symbols = [*_functions(data, sections)]
    except (struct.error, IndexError, ValueError, OverflowError) as error:
        raise ElfError(f"{path.name}: the section headers cannot be read ({error})") from error
    kernels: tuple[str, ...] = ()
    where = "not a GPU binary"
    if device == "cuda":
        kernels, where = _kernels(path, {name for name, _ in symbols}, _all_names(data, sections), cuobjdump)
    own = [(name, size) for name, size in symbols if size and not _NOT_OWN.match(name)]
    return Contents(
        sections=tuple(Section(name=s.name, size_bytes=s.size) for s in sections if s.size),
        functions=tuple(Function(name=n, size_bytes=s) for n, s in sorted(own, key=lambda f: (-f[1], f[0]))),
        kernels=kernels, kernel_source=where,
    )  # fmt: skip


def find_cuobjdump(nvcc: Path | None) -> Path | None:
    """NVIDIA's cuobjdump: on the PATH, or beside nvcc; None if it is in neither place."""
    on_path = shutil.which("cuobjdump")
    places = [Path(on_path)] if on_path else []
    if nvcc is not None:
        places += [nvcc.parent / "cuobjdump", nvcc.resolve().parent / "cuobjdump"]
    return next((p for p in places if p.is_file()), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Header:
    name: str
    kind: int
    offset: int
    size: int
    link: int
    entry_size: int


def _sections(data: bytes) -> Iterator[_Header]:
    if data[:4] != b"\x7fELF" or data[4:6] != b"\x02\x01":
        raise ValueError("not a 64-bit little-endian ELF file")
    (table,) = struct.unpack_from("<Q", data, 40)
    size, count, names_at = struct.unpack_from("<HHH", data, 58)
    raw = [struct.unpack_from("<IIQQQQIIQQ", data, table + i * size) for i in range(count)]
    strings = data[raw[names_at][4] : raw[names_at][4] + raw[names_at][5]] if count else b""
    for name, kind, _flags, _address, offset, length, link, _info, _align, entry in raw:
        yield _Header(
            name=_text(strings, name), kind=kind, offset=offset, size=length, link=link, entry_size=entry
        )  # fmt: skip


def _functions(data: bytes, sections: list[_Header]) -> Iterator[tuple[str, int]]:
    """Name and size of each function that the symbol table defines."""
    for table in sections:
        if table.kind != _SHT_SYMTAB or table.entry_size != 24:
            continue
        strings = _bytes(data, sections[table.link])
        for name, info, _other, section, _value, size in struct.iter_unpack("<IBBHQQ", _bytes(data, table)):
            if info & 15 == _STT_FUNC and section != 0:
                yield _text(strings, name), size


def _all_names(data: bytes, sections: list[_Header]) -> str:
    return "\n".join(
        _bytes(data, sections[t.link]).replace(b"\0", b"\n").decode("utf-8", "replace")
        for t in sections
        if t.kind == _SHT_SYMTAB
    )


def _kernels(path: Path, functions: set[str], names: str, cuobjdump: Path | None) -> tuple[tuple[str, ...], str]:
    if cuobjdump is not None:
        found = _kernels_by_tool(path, cuobjdump)
        if found is not None:
            return found, "device code, by cuobjdump"
    # Every kernel has a host function of its name, and a stub whose name holds that name mangled.
    mangled = {n: n.removeprefix("_") if n.startswith("_Z") else f"Z{len(n)}{n}" for n in functions}
    stubs = {n for n, inner in mangled.items() if f"__device_stub__{inner}" in names}
    if stubs:
        return tuple(sorted(stubs)), "host stubs in the symbol table; cuobjdump is not installed"
    return (), "unavailable: no cuobjdump, and no host stubs in the symbol table"


def _kernels_by_tool(path: Path, cuobjdump: Path) -> tuple[str, ...] | None:
    command = [str(cuobjdump), "-res-usage", str(path)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TOOL_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return tuple(dict.fromkeys(_RESOURCE_FUNCTION.findall(done.stdout))) if done.returncode == 0 else None


def _bytes(data: bytes, section: _Header) -> bytes:
    return b"" if section.kind == _SHT_NOBITS else data[section.offset : section.offset + section.size]


def _text(strings: bytes, offset: int) -> str:
    return strings[offset : strings.index(b"\0", offset)].decode("utf-8", "replace")
