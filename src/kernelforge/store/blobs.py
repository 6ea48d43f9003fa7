"""Binaries on disk under their sha256, written atomically and checked when read."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from kernelforge.digest import digest_bytes
from kernelforge.errors import NotFound, ProjectError


def put_blob(folder: Path, source: Path) -> str:
    """Copy a file into the folder, which must exist; returns its sha256. Content that is there is not written again.

    Raises:
        NotFound: no such source file. ProjectError: it cannot be read, or the folder cannot be written.
    """
    try:
        data = source.read_bytes()
    except FileNotFoundError as error:
        raise NotFound(
            f"no binary at {source}", hint="the build cache was cleared; run the same command again"
        ) from error
    except OSError as error:
        raise ProjectError(f"cannot read {source}: {error.strerror}") from error
    name = digest_bytes(data)
    target = folder / name
    try:
        # A file of the right size but with another content was edited or cut by a dying disk: write it anew.
        if not (target.is_file() and digest_bytes(target.read_bytes()) == name):
            write_atomically(target, data)
    except OSError as error:
        raise ProjectError(
            f"cannot write {target}: {error.strerror}", hint="free disk space, or check its rights"
        ) from error
    return name


def get_blob(folder: Path, name: str) -> Path:
    """Path of a stored file whose content was checked just now.

    Raises:
        NotFound: not stored. ProjectError: its content is not what was stored.
    """
    path = folder / name
    try:
        data = path.read_bytes()
    except FileNotFoundError as error:
        raise NotFound(f"the project holds no binary {name[:12]}", hint="run `kforge forge` again") from error
    except OSError as error:
        raise ProjectError(f"cannot read {path}: {error.strerror}") from error
    if digest_bytes(data) != name:
        raise ProjectError(
            f"{path} was changed after it was stored", hint="delete the file and run `kforge forge` again"
        )
    return path


def write_atomically(target: Path, data: bytes) -> None:
    """Write a file so that a reader, or a crash, sees all of it or nothing.

    Raises:
        OSError: as of writing a file.
    """
    descriptor, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name[:16]}-")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        Path(name).replace(target)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
