"""The ZIP container, strictly: the only layout accepted is the one that `pack` writes. Knows nothing of the content.

A ZIP has two descriptions of each entry, may carry bytes that neither describes, and may name files outside of the
folder it is extracted to. All of that is refused here, so that the checksums cover every byte that matters.
"""

from __future__ import annotations

import io
import re
import stat
import struct
import zipfile
import zlib
from collections.abc import Callable, Collection, Mapping

from kernelforge.errors import PackageError

MAX_FILE_BYTES = 1 << 30
MAX_ENTRY_BYTES = 256 << 20
MAX_TOTAL_BYTES = 2 << 30
MAX_ENTRIES = 20_000
MAX_RATIO = 250  # text and machine code stay far below; a bomb, and a table of zeros, is near 1000
_RATIO_FREE_BYTES = 1 << 20
_TOTAL_FREE_BYTES = 64 << 20
_EPOCH = (1980, 1, 1, 0, 0, 0)
_EPOCH_DOS = (0, 33)  # the same as time and date of a ZIP: midnight, the first of January 1980
_LOCAL = struct.Struct("<4s5H3I2H")
_CENTRAL = struct.Struct("<4s4B4H3I5H2I")
_END = struct.Struct("<4s4H2IH")
_VERSION, _UNIX, _PLAIN_FILE = 20, 3, (stat.S_IFREG | 0o644) << 16
_NAME = re.compile(r"[A-Za-z0-9_.+-]+(/[A-Za-z0-9_.+-]+)*")


def pack(files: Mapping[str, bytes], *, compress: bool = True) -> bytes:
    """A ZIP of the files in the given order, with fixed dates and modes.

    What would shrink so far that it looks like a bomb is not compressed: `unpack` reads whatever is packed here.

    Args:
        compress: False stores everything as it is, so that the bytes depend on no version of zlib.
    """
    if not compress:
        return _pack_plain(files)
    data, infos = _pack(files, plain=())
    dense = {i.filename for i in infos if i.file_size > MAX_RATIO * max(i.compress_size, 1)}
    return _pack(files, plain=dense)[0] if dense else data


def _pack(files: Mapping[str, bytes], *, plain: Collection[str]) -> tuple[bytes, list[zipfile.ZipInfo]]:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=6) as archive:
        for name, data in files.items():
            info = zipfile.ZipInfo(name, date_time=_EPOCH)
            info.create_system = _UNIX
            info.external_attr = _PLAIN_FILE
            info.compress_type = zipfile.ZIP_DEFLATED if len(data) > 256 and name not in plain else zipfile.ZIP_STORED
            archive.writestr(info, data)
        infos = archive.infolist()
    return buffer.getvalue(), infos


def _pack_plain(files: Mapping[str, bytes]) -> bytes:
    """Written out here, for its bytes must not depend on the version of a library."""
    parts, directory, position = [], [], 0
    for name, data in files.items():
        text, crc = name.encode(), zlib.crc32(data)
        common = (0, 0, *_EPOCH_DOS, crc, len(data), len(data), len(text), 0)
        local = _LOCAL.pack(b"PK\x03\x04", _VERSION, *common)
        directory += [
            _CENTRAL.pack(b"PK\x01\x02", _VERSION, _UNIX, _VERSION, 0, *common, 0, 0, 0, _PLAIN_FILE, position),
            text,
        ]
        parts += [local, text, data]
        position += len(local) + len(text) + len(data)
    central = b"".join(directory)
    end = _END.pack(b"PK\x05\x06", 0, 0, len(files), len(files), len(central), position, 0)
    return b"".join([*parts, central, end])


def unpack(
    data: bytes, *, first: str, expected: Callable[[str], bool] | None = None, plain_with: str = ""
) -> dict[str, bytes]:
    """All entries of a ZIP, in order.

    Args:
        data: the whole file. first: the name that the first entry must have.
        expected: whether a name may be there; nothing is decompressed if one may not. By default every one may.
        plain_with: where there is an entry of this name, the file must be what `pack(..., compress=False)` writes, to
            the byte; nothing is decompressed then.

    Raises:
        PackageError: not a ZIP, truncated, or anything but what `pack` writes; names the entry.
    """
    if len(data) > MAX_FILE_BYTES:
        raise PackageError(f"{len(data)} bytes are more than a package may have ({MAX_FILE_BYTES})")
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            infos = archive.infolist()
            _check_entries(infos, first)
            _check_names(infos, expected)
            _check_sizes(infos, len(data))
            _check_layout(data, archive, infos)
            plain = plain_with in {info.filename for info in infos}
            if plain:
                _check_plain(infos)
            files = {info.filename: _read(archive, info) for info in infos}
        if plain and pack(files, compress=False) != data:
            raise PackageError("the container differs from the one way in which it may be written")
        return files
    except (zipfile.BadZipFile, zlib.error, EOFError, struct.error, NotImplementedError, ValueError) as error:
        raise PackageError(f"not a ZIP file, or a truncated or damaged one: {error}") from error


def _check_entries(infos: list[zipfile.ZipInfo], first: str) -> None:
    if not infos or infos[0].orig_filename != first:
        raise PackageError(f"{first} is not the first entry")
    if len(infos) > MAX_ENTRIES:
        raise PackageError(f"{len(infos)} entries are more than {MAX_ENTRIES}")
    seen: set[str] = set()
    for info in infos:
        problem = _entry_problem(info)
        if not problem and info.orig_filename.casefold() in seen:
            problem = "is there twice, or twice but for upper and lower case"
        if problem:
            raise PackageError(f"entry {info.orig_filename!r} {problem}")
        seen.add(info.orig_filename.casefold())


def _check_names(infos: list[zipfile.ZipInfo], expected: Callable[[str], bool] | None) -> None:
    names = {info.filename.casefold() for info in infos}
    for info in infos:
        if expected is not None and not expected(info.filename):
            raise PackageError(f"entry {info.filename!r} does not belong there")
        parts = info.filename.casefold().split("/")
        if any("/".join(parts[:n]) in names for n in range(1, len(parts))):
            raise PackageError(f"entry {info.filename!r} is in a folder that is a file")


def _check_sizes(infos: list[zipfile.ZipInfo], file_bytes: int) -> None:
    total = sum(info.file_size for info in infos)
    if total > MAX_TOTAL_BYTES:
        raise PackageError(f"the entries together are larger than {MAX_TOTAL_BYTES} bytes")
    # Many entries that are each small enough to shrink as they like.
    if total > _TOTAL_FREE_BYTES + MAX_RATIO * file_bytes:
        raise PackageError(f"the entries together unpack to more than {MAX_RATIO} times the size of the file")


def _entry_problem(info: zipfile.ZipInfo) -> str:
    """What is wrong with one entry of the central directory, or ""."""
    name, mode = info.orig_filename, info.external_attr >> 16
    if not _NAME.fullmatch(name) or any(part in {".", ".."} for part in name.split("/")) or name != info.filename:
        return "has a name that is absolute, leaves the package, or holds unusual characters"
    if not stat.S_ISREG(mode) or stat.S_IMODE(mode) != 0o644:
        return "is not a plain file"
    if info.flag_bits:
        return "is encrypted or has unusual flags"
    if info.compress_type not in {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED}:
        return "uses an unusual compression"
    if info.extra or info.comment:
        return "has extra fields or a comment"
    if info.file_size > MAX_ENTRY_BYTES:
        return f"is larger than {MAX_ENTRY_BYTES} bytes"
    if info.file_size > _RATIO_FREE_BYTES and info.file_size > MAX_RATIO * max(info.compress_size, 1):
        return f"unpacks to more than {MAX_RATIO} times its size"
    return ""


def _check_layout(data: bytes, archive: zipfile.ZipFile, infos: list[zipfile.ZipInfo]) -> None:
    """Local headers agree with the central directory, and entries, directory and end fill the file without a gap."""
    position = 0
    for info in infos:
        if info.header_offset != position:
            raise PackageError(f"entry {info.filename!r} does not follow the one before it")
        fields = _LOCAL.unpack_from(data, position)
        signature, _version, flags, method, _time, _date, crc, packed, size, name_bytes, extra_bytes = fields
        start = position + _LOCAL.size
        name = data[start : start + name_bytes]
        central = (info.flag_bits, info.compress_type, info.CRC, info.compress_size, info.file_size)
        if signature != b"PK\x03\x04" or (flags, method, crc, packed, size) != central or extra_bytes:
            raise PackageError(f"entry {info.filename!r}: its local header and the central directory disagree")
        if name != info.filename.encode():
            raise PackageError(f"entry {info.filename!r} has another name in its local header")
        position = start + name_bytes + packed
    if position != archive.start_dir or archive.comment:
        raise PackageError("there are bytes that belong to no entry")
    directory_bytes = sum(_CENTRAL.size + len(info.filename.encode()) for info in infos)
    if position + directory_bytes + _END.size != len(data):
        raise PackageError("there are bytes before or after the central directory")


def _check_plain(infos: list[zipfile.ZipInfo]) -> None:
    for info in infos:
        if info.compress_type != zipfile.ZIP_STORED:
            raise PackageError(f"entry {info.filename!r} is compressed")


def _read(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> bytes:
    try:
        with archive.open(info) as stream:
            content = stream.read(info.file_size + 1)
    except (zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise PackageError(f"entry {info.filename!r} is damaged: {error}") from error
    if len(content) != info.file_size:
        raise PackageError(f"entry {info.filename!r} does not have the size it declares")
    return content
