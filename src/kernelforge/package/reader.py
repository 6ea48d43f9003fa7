"""Reading a package: verified before it is parsed, nothing in it is executed or unpickled.

Also owns the cache of extracted binaries: private to the user, named by content, hashed again at every use. What was
hashed is what is loaded: only this user can write to the folder, and the path that is given out goes through a
descriptor of it, so that nobody who can rename the folders above can put another one in its place.
"""

from __future__ import annotations

import os
import secrets
import threading
from pathlib import Path

from kernelforge.digest import digest_bytes
from kernelforge.errors import ForgeError, NotFound, PackageError
from kernelforge.package.archive import MAX_FILE_BYTES, unpack
from kernelforge.package.layout import HEADER, SIGNATURE
from kernelforge.package.parsing import parse_package
from kernelforge.package.signing import check_private, private_folder
from kernelforge.package.types import Binary, Package

_DESCRIPTORS = Path("/proc/self/fd")
_folders: dict[tuple[int, int], int] = {}
"""Descriptors of the cache folders in use, by device and inode; they stay open, as paths were given out."""
_folders_lock = threading.Lock()


def read_package(path: Path) -> Package:
    """Read a `.cast` file and see that each of its bytes is accounted for. Whether to trust it: `package.trust`.

    Raises:
        NotFound: no such file.
        PackageError: not a package, corrupt, truncated, edited, wrongly signed, or of a newer format; names the file
            and the entry.
    """
    return package_of(_read_file(path), path)


def package_of(data: bytes, path: Path) -> Package:
    """The package that these bytes are. See `read_package`.

    Args:
        path: where they are from, for messages.
    """
    try:
        files = unpack(data, first=HEADER, plain_with=SIGNATURE)
        return parse_package(files, path=path, digest=digest_bytes(data))
    except PackageError as error:
        hint = error.hint or "the file is damaged or was edited: get or export it again"
        raise PackageError(f"{path}: {error.message}", hint=hint) from error


def extract_binary(binary: Binary, cache_dir: Path) -> Path:
    """The binary as a file in the cache, which only this user can write.

    A file that is already there is used only if it has the right bytes; else it is replaced.

    Returns: a path that is good in this process.

    Raises:
        ForgeError: the cache cannot be written, or others may write to it.
    """
    folder = cache_dir / "packages"
    name = f"{binary.digest}.so"
    try:
        private_folder(folder, "KFORGE_CACHE_DIR")
        descriptor = _open_folder(folder)
        if not _has_content(name, descriptor, binary.digest):
            _replace(name, descriptor, binary.data)
    except OSError as error:
        raise ForgeError(
            f"cannot write to the cache {folder}: {error.strerror}", hint="set KFORGE_CACHE_DIR to a folder of yours"
        ) from error
    through = _DESCRIPTORS / str(descriptor)
    return (through if through.exists() else folder) / name


def _open_folder(folder: Path) -> int:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        status = os.fstat(descriptor)
        check_private(status, folder, "KFORGE_CACHE_DIR")
    except BaseException:
        os.close(descriptor)
        raise
    with _folders_lock:
        for key, other in list(_folders.items()):
            links = _links(other, key)
            if links is None:  # somebody closed all descriptors; the number may be of another file now
                del _folders[key]
            elif links == 0:  # the folder was removed, and with it what is in it
                os.close(_folders.pop(key))
        kept = _folders.setdefault((status.st_dev, status.st_ino), descriptor)
    if kept != descriptor:
        os.close(descriptor)
    return kept


def _links(descriptor: int, key: tuple[int, int]) -> int | None:
    """How many names the folder has that is open there; None if it is not the one of this device and inode."""
    try:
        status = os.fstat(descriptor)
    except OSError:
        return None
    return status.st_nlink if (status.st_dev, status.st_ino) == key else None


def _read_file(path: Path) -> bytes:
    try:
        with path.open("rb") as stream:
            return stream.read(MAX_FILE_BYTES + 1)
    except FileNotFoundError as error:
        raise NotFound(f"no package at {path}", hint="make one with: kforge export PROJECT -o FILE.cast") from error
    except IsADirectoryError as error:
        if (path / "nodes.db").is_file():
            hint = f"export it first: kforge export {path} -o {path.stem}.cast"
            raise PackageError(f"{path} is a project, not a package", hint=hint) from error
        raise PackageError(f"{path} is a folder, not a package", hint="name a .cast file") from error
    except OSError as error:
        raise PackageError(f"{path} cannot be read: {error.strerror}") from error


def _has_content(name: str, folder: int, digest: str) -> bool:
    try:
        descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    except OSError:
        return False
    with os.fdopen(descriptor, "rb") as stream:
        return digest_bytes(stream.read()) == digest


def _replace(name: str, folder: int, data: bytes) -> None:
    temporary = f".{name}.{secrets.token_hex(8)}"
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=folder)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(data)
        os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        os.unlink(temporary, dir_fd=folder)
        raise
