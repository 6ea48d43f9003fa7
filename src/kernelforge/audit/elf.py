"""A minimal reader of 64-bit little-endian ELF shared objects: needed libraries and dynamic symbols.

Own code instead of a tool, because the audit must work on every machine that judges, and because what it reads is
hostile: every offset is checked, and a file that does not parse is an `ElfError`, never a crash.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path

from kernelforge.audit.machine_code import forbidden_instructions

_PT_LOAD, _PT_DYNAMIC, _PT_TLS, _PT_GNU_STACK, _PT_GNU_RELRO, _PF_X, _PF_W = 1, 2, 7, 0x6474E551, 0x6474E552, 1, 2
_EM_X86_64 = 62
_DT_NEEDED, _DT_STRTAB, _DT_SYMTAB, _DT_STRSZ, _DT_RPATH, _DT_RUNPATH = 1, 5, 6, 10, 15, 29
_DT_INIT, _DT_INIT_ARRAY, _DT_INIT_ARRAYSZ = 12, 25, 27
_DT_HASH, _DT_GNU_HASH = 4, 0x6FFFFEF5
_STT_GNU_IFUNC = 10
_SHT_DYNSYM = 11


class ElfError(ValueError):
    """The file is not an ELF shared object that this reader understands."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedObject:
    """What a shared object asks of its process.

    Attributes:
        needed: DT_NEEDED names, in order; search_paths: DT_RPATH and DT_RUNPATH.
        undefined, defined: names of dynamic symbols, sorted; ifuncs: defined ones resolved by running code at load.
        static_bytes: writable memory that outlives a call: .data, .bss and thread-local variables, without the tables
            that the dynamic linker fills.
        init_functions: number of pointers in DT_INIT_ARRAY (constructors); has_init: there is a DT_INIT.
        instructions: names of `machine_code.forbidden_instructions` in its code, sorted; only looked for on x86-64.
    """

    needed: tuple[str, ...]
    search_paths: tuple[str, ...]
    undefined: tuple[str, ...]
    defined: tuple[str, ...]
    ifuncs: tuple[str, ...]
    static_bytes: int
    init_functions: int
    has_init: bool
    instructions: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Segment:
    offset: int
    address: int
    file_size: int


def read_shared_object(path: Path) -> SharedObject:
    """Read a shared object.

    Raises:
        ElfError: it does not parse. OSError: it cannot be read.
    """
    data = path.read_bytes()
    try:
        return _Reader(data).read()
    except (struct.error, IndexError, OverflowError) as error:
        raise ElfError(f"{path.name}: truncated or damaged ELF file ({error})") from error


class _Reader:
    """Follows the run time's own view, the segments: sections may be stripped or lie."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        if data[:4] != b"\x7fELF" or data[4:6] != b"\x02\x01":
            raise ElfError("not a 64-bit little-endian ELF file")
        (self.machine,) = struct.unpack_from("<H", data, 18)
        (self.program_offset,) = struct.unpack_from("<Q", data, 32)
        (self.section_offset,) = struct.unpack_from("<Q", data, 40)
        self.program_size, self.program_count, self.section_size, self.section_count = struct.unpack_from(
            "<HHHH", data, 54
        )

    def read(self) -> SharedObject:
        loads, dynamic = self._segments()
        self.loads = loads
        entries = self._dynamic(dynamic)
        table = dict(entries)
        if _DT_STRTAB not in table or _DT_SYMTAB not in table:
            raise ElfError("no dynamic symbol table")
        strings = self._bytes(table[_DT_STRTAB], table.get(_DT_STRSZ, 0))

        def text(offset: int) -> str:
            end = strings.find(b"\0", offset)
            if offset > len(strings) or end < 0:
                raise ElfError("a name lies outside of the string table")
            return strings[offset:end].decode("utf-8", "replace")

        undefined: set[str] = set()
        defined: set[str] = set()
        ifuncs: set[str] = set()
        start = self._file_offset(table[_DT_SYMTAB])
        for index in range(1, self._symbol_count(table)):
            name, info, _other, section, _value, _size = struct.unpack_from("<IBBHQQ", self.data, start + 24 * index)
            (undefined if section == 0 else defined).add(text(name))
            if section != 0 and info & 15 == _STT_GNU_IFUNC:
                ifuncs.add(text(name))
        return SharedObject(
            needed=tuple(text(v) for t, v in entries if t == _DT_NEEDED),
            search_paths=tuple(text(v) for t, v in entries if t in (_DT_RPATH, _DT_RUNPATH)),
            undefined=tuple(sorted(undefined - {""})), defined=tuple(sorted(defined - {""})),
            ifuncs=tuple(sorted(ifuncs)), static_bytes=self._static_bytes(),
            init_functions=table.get(_DT_INIT_ARRAYSZ, 0) // 8, has_init=_DT_INIT in table,
            instructions=self._instructions(),
        )  # fmt: skip

    def _instructions(self) -> tuple[str, ...]:
        if self.machine != _EM_X86_64:
            return ()
        found: set[str] = set()
        for index in range(self.program_count):
            at = self.program_offset + index * self.program_size
            kind, flags, offset, _address, _physical, size = struct.unpack_from("<IIQQQQ", self.data, at)
            if kind == _PT_LOAD and flags & _PF_X and flags & _PF_W:
                found.add("code that is writable")
            if kind == _PT_GNU_STACK and flags & _PF_X:
                found.add("an executable stack")
            if kind == _PT_LOAD and flags & _PF_X:
                found.update(forbidden_instructions(self.data[offset : offset + size]))
        return tuple(sorted(found))

    def _static_bytes(self) -> int:
        """Writable and thread-local memory, less what is made read-only after relocation."""
        writable = relro = thread_local = 0
        for index in range(self.program_count):
            at = self.program_offset + index * self.program_size
            kind, flags, *_, memory, _align = struct.unpack_from("<IIQQQQQQ", self.data, at)
            if kind == _PT_LOAD and flags & _PF_W:
                writable += memory
            elif kind == _PT_GNU_RELRO:
                relro += memory
            elif kind == _PT_TLS:
                thread_local += memory
        return int(max(writable - relro, 0) + thread_local)

    def _segments(self) -> tuple[list[_Segment], _Segment]:
        loads, dynamic = [], None
        for index in range(self.program_count):
            at = self.program_offset + index * self.program_size
            kind, _flags, offset, address, _physical, file_size, _memory, _align = struct.unpack_from(
                "<IIQQQQQQ", self.data, at
            )
            if kind == _PT_LOAD:
                loads.append(_Segment(offset, address, file_size))
            elif kind == _PT_DYNAMIC:
                dynamic = _Segment(offset, address, file_size)
        if dynamic is None:
            raise ElfError("not a dynamic shared object")
        return loads, dynamic

    def _dynamic(self, segment: _Segment) -> list[tuple[int, int]]:
        entries = []
        # The loader finds the table by its address, not by the segment's file offset.
        start = self._file_offset(segment.address)
        for at in range(start, start + segment.file_size, 16):
            tag, value = struct.unpack_from("<qQ", self.data, at)
            if tag == 0:
                break
            entries.append((tag, value))
        return entries

    def _symbol_count(self, table: dict[int, int]) -> int:
        """From DT_HASH if present, else from the GNU hash table's longest chain, else from the section headers."""
        if _DT_HASH in table:
            return int(struct.unpack_from("<II", self.data, self._file_offset(table[_DT_HASH]))[1])
        count = self._count_by_sections(table)
        if _DT_GNU_HASH in table:
            count = max(count, self._count_by_gnu_hash(self._file_offset(table[_DT_GNU_HASH])))
        return count

    def _count_by_gnu_hash(self, at: int) -> int:
        buckets, offset, bloom, _shift = struct.unpack_from("<IIII", self.data, at)
        heads = struct.unpack_from(f"<{buckets}I", self.data, at + 16 + 8 * bloom)
        chains = at + 16 + 8 * bloom + 4 * buckets
        last = max(heads, default=0)
        if last < offset:
            return int(offset)
        while struct.unpack_from("<I", self.data, chains + 4 * (last - offset))[0] & 1 == 0:
            last += 1
        return int(last) + 1

    def _count_by_sections(self, table: dict[int, int]) -> int:
        for index in range(self.section_count):
            at = self.section_offset + index * self.section_size
            _name, kind, _flags, address, _offset, size = struct.unpack_from("<IIQQQQ", self.data, at)
            if kind == _SHT_DYNSYM and address == table[_DT_SYMTAB]:
                return int(size // 24)
        # The string table follows the symbol table in what every common linker writes.
        return max(0, table[_DT_STRTAB] - table[_DT_SYMTAB]) // 24

    def _file_offset(self, address: int) -> int:
        for segment in self.loads:
            if segment.address <= address < segment.address + segment.file_size:
                return segment.offset + address - segment.address
        raise ElfError(f"address {address:#x} is not in the file")

    def _bytes(self, address: int, size: int) -> bytes:
        start = self._file_offset(address)
        return self.data[start : start + size]
