"""Writing a package: deterministic bytes, all or nothing on disk."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from kernelforge.atomic import write_atomically
from kernelforge.errors import PackageError
from kernelforge.package.archive import pack
from kernelforge.package.layout import render
from kernelforge.package.reader import package_of
from kernelforge.package.signing import Signer, local_signer
from kernelforge.package.types import Entry, Header, Package
from kernelforge.settings import load_settings


def write_package(path: Path, entries: Sequence[Entry], *, header: Header, signer: Signer | None = None) -> Package:
    """Write and sign a `.cast` file; an existing one is replaced only when the new one is complete.

    The same header, entries and signer give the same bytes. Whoever signs vouches for the entries: those of a package
    that is not trusted must not be written again.

    Args:
        signer: by default this machine's own key.

    Returns: the package as a reader of the file will see it.

    Raises:
        PackageError: two entries for one variant, or the disk is full or not writable; nothing is left behind.
        EnvironmentMissing: others can read this machine's key. ForgeError: there can be none.
    """
    signer = local_signer(load_settings().config_dir) if signer is None else signer
    try:
        data = pack(render(header, entries, signer=signer), compress=False)
    except ValueError as error:
        raise PackageError(f"{path} cannot be written: {error}") from error
    # A file that our own reader would refuse must not be written.
    package = package_of(data, path)
    try:
        write_atomically(path, data, mode=0o666)
    except OSError as error:
        raise PackageError(
            f"cannot write {path}: {error.strerror}", hint="free some space or choose another place with -o"
        ) from error
    return package
