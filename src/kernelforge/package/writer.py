"""Writing a package: deterministic bytes, all or nothing on disk."""

from __future__ import annotations

import os
import secrets
from collections.abc import Sequence
from pathlib import Path

from kernelforge.digest import digest_bytes
from kernelforge.errors import PackageError
from kernelforge.package.archive import pack
from kernelforge.package.layout import HEADER, parse_entries, parse_header, render
from kernelforge.package.types import Entry, Header, Package


def write_package(path: Path, entries: Sequence[Entry], *, header: Header) -> Package:
    """Write a `.cast` file; an existing one is replaced only when the new one is complete.

    The same header and entries give the same bytes.

    Returns: the package as a reader of the file will see it.

    Raises:
        PackageError: two entries for one variant, or the disk is full or not writable; nothing is left behind.
    """
    files = render(header, entries)
    data = pack(files)
    # A file that our own reader would refuse must not be written.
    package = Package(
        header=parse_header(files[HEADER]), entries=parse_entries(files), path=path, digest=digest_bytes(data)
    )
    try:
        _write_atomically(path, data)
    except OSError as error:
        raise PackageError(
            f"cannot write {path}: {error.strerror}", hint="free some space or choose another place with -o"
        ) from error
    return package


def _write_atomically(path: Path, data: bytes) -> None:
    # In the same folder: a rename across file systems is a copy, and a copy can stop half way.
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(data)
            stream.flush()
            # Full disks show up here at the latest, on file systems that allocate late.
            os.fsync(stream.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
