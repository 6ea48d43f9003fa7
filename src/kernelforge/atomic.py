"""Writing a file whole or not at all. Owns `write_atomically`."""

from __future__ import annotations

import os
import secrets
from pathlib import Path


def write_atomically(path: Path, data: bytes, *, mode: int = 0o600) -> None:
    """Put a file in its place, replacing what is there only when all of it is on disk.

    Args:
        mode: of the new file, less the process's umask.

    Raises:
        OSError: it cannot be written; nothing is left behind.
    """
    # In the same folder: a rename across file systems is a copy, and a copy can stop half way.
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(data)
            stream.flush()
            # Full disks show up here at the latest, on file systems that allocate late.
            os.fsync(stream.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
