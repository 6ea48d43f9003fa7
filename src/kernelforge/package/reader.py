"""Reading a package: verified before it is parsed, nothing in it is executed or unpickled.

Also owns the cache of extracted binaries: private to the user, named by content, hashed again at every use.
"""

from __future__ import annotations

import os
import secrets
import stat
from pathlib import Path

from kernelforge.digest import digest_bytes
from kernelforge.errors import EnvironmentMissing, ForgeError, NotFound, PackageError
from kernelforge.package.archive import MAX_FILE_BYTES, unpack
from kernelforge.package.layout import CHECKSUMS, HEADER, MANIFEST, checksums, parse_entries, parse_header
from kernelforge.package.types import Binary, Package


def read_package(path: Path) -> Package:
    """Read and verify a `.cast` file.

    Raises:
        NotFound: no such file.
        PackageError: not a package, corrupt, truncated, edited, or of a newer format; names the file and the entry.
    """
    data = _read_file(path)
    try:
        files = unpack(data, first=HEADER)
        for name in (MANIFEST, CHECKSUMS):
            if name not in files:
                raise PackageError(f"{name} is missing")
        _check_checksums(files)
        header = parse_header(files[HEADER])
        entries = parse_entries(files)
    except PackageError as error:
        hint = error.hint or "the file is damaged or was edited: get or export it again"
        raise PackageError(f"{path}: {error.message}", hint=hint) from error
    return Package(header=header, entries=entries, path=path, digest=digest_bytes(data))


def extract_binary(binary: Binary, cache_dir: Path) -> Path:
    """The binary as a file in the cache, which only this user can write.

    A file that is already there is used only if it has the right bytes; else it is replaced.

    Raises:
        ForgeError: the cache cannot be written, or others may write to it.
    """
    folder = cache_dir / "packages"
    try:
        cache_dir.mkdir(parents=True, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)
        _check_private(folder)
        target = folder / f"{binary.digest}.so"
        if not _has_content(target, binary.digest):
            _replace(target, binary.data)
    except OSError as error:
        raise ForgeError(
            f"cannot write to the cache {folder}: {error.strerror}", hint="set KFORGE_CACHE_DIR to a folder of yours"
        ) from error
    return target


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


def _check_checksums(files: dict[str, bytes]) -> None:
    """The checksum file must be, to the byte, what the files give."""
    want = checksums(files)
    if files[CHECKSUMS] == want:
        return
    given = set(files[CHECKSUMS].decode(errors="replace").splitlines())
    wrong = [line.split("  ", 1)[1] for line in want.decode().splitlines() if line not in given]
    raise PackageError(f"{wrong[0] if wrong else CHECKSUMS}: sha256 differs from {CHECKSUMS}, or is not in it")


def _check_private(folder: Path) -> None:
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
        raise EnvironmentMissing(
            f"{folder} is not a folder of this user", hint="remove it, or set KFORGE_CACHE_DIR to a folder of yours"
        )
    if status.st_mode & 0o077:
        folder.chmod(0o700)


def _has_content(path: Path, digest: str) -> bool:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    with os.fdopen(descriptor, "rb") as stream:
        return digest_bytes(stream.read()) == digest


def _replace(path: Path, data: bytes) -> None:
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        temporary.touch(mode=0o600, exist_ok=False)
        temporary.write_bytes(data)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
