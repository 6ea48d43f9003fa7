"""The library on disk. Owns `Library`.

One folder with one file per kernel, `<library key>-<id>.json`, written atomically and never edited: processes need no
lock. Nothing here is trusted and nothing here may end a run: what cannot be read or written is a warning.
"""

from __future__ import annotations

import logging
import re
import stat
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from kernelforge.cards.types import Variant
from kernelforge.errors import NotFound, ProjectError
from kernelforge.library.serial import LARGEST_FILE, from_bytes, to_bytes
from kernelforge.library.types import StoredKernel, library_key
from kernelforge.search.duplicates import normalised
from kernelforge.store.blobs import write_atomically
from kernelforge.wording import plural

BEST = 3
"""So many kernels are kept of a library key, for each backend, ABI, tool chain, device and torch."""

_NAME = re.compile(r"(?P<key>[0-9a-f]{64})-(?P<id>[0-9a-f]{64})\.json")
_PARTIAL = re.compile(r"\.[0-9a-f]{16}-[^.]+")
"""What `write_atomically` names a file before it is whole."""
_STALE_S = 3600.0

logger = logging.getLogger(__name__)


class Library:
    """Kernels below one folder, which need not exist. Safe for several threads and processes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._warned: set[str] = set()

    def keep(self, kernels: Iterable[StoredKernel]) -> int:
        """Store kernels, each in the place of what was known of the very same; returns how many could be written.

        A kernel that came out of the library keeps its first generator, notes and model. Of those that can be compared
        the `BEST` stay.
        """
        written = 0
        for kernel in kernels:
            try:
                known = {normalised(k.source): k for k in self.of(kernel.variant)}.get(normalised(kernel.source))
                data = to_bytes(kernel if known is None else _first_known_as(kernel, known))
                if len(data) > LARGEST_FILE:
                    raise ValueError(f"its source has {len(kernel.source)} characters")
                # Sources are built and run here: nobody else may put some in.
                self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                self._remove_stale()
                write_atomically(self.folder / _name(kernel), data)
                self._remove_slower(kernel)
            except (OSError, ValueError) as error:
                logger.warning("%s was not kept in the library: %s", kernel.variant.label, error)
            else:
                written += 1
        return written

    def of(self, variant: Variant) -> tuple[StoredKernel, ...]:
        """All kernels of a variant, whatever made or ran them, the fastest first."""
        key = library_key(variant)
        found = [self._read(path) for name, path in self._files() if name["key"] == key]
        return _fastest_first(k for k in found if k is not None)

    def kernels(self) -> tuple[StoredKernel, ...]:
        """All that can be read, by operator and variant, the fastest first."""
        found = [self._read(path) for _, path in self._files()]
        ordered = _fastest_first(k for k in found if k is not None)
        return tuple(sorted(ordered, key=lambda k: (k.variant.operator, library_key(k.variant))))

    def find(self, prefix: str) -> StoredKernel:
        """The kernel whose id starts so.

        Raises:
            NotFound: none, or more than one. ProjectError: its file is damaged.
        """
        [path] = self._named([prefix])
        kernel = self._read(path)
        if kernel is None:
            raise ProjectError(
                f"kernel {prefix} of the library cannot be read", hint=f"remove it: kforge library rm {prefix}"
            )
        return kernel

    def remove(self, prefixes: Sequence[str]) -> int:
        """Remove the kernels whose ids start so, also damaged ones; all or, if a prefix is none's, nothing.

        Raises:
            NotFound: a prefix starts no id, or several. ProjectError: a file cannot be removed.
        """
        return self._unlink(self._named(prefixes))

    def drop(self, kernels: Iterable[StoredKernel]) -> bool:
        """Remove kernels in the middle of a search; whether that could be done. One that is gone is fine."""
        try:
            for kernel in kernels:
                (self.folder / _name(kernel)).unlink(missing_ok=True)
        except OSError as error:
            self._warn("drop", f"kernels of the library {self.folder} cannot be removed: {error.strerror}")
            return False
        return True

    def clear(self) -> int:
        """Remove all kernels.

        Raises:
            ProjectError: a file cannot be removed.
        """
        return self._unlink([path for _, path in self._files()])

    def _files(self) -> Iterator[tuple[re.Match[str], Path]]:
        try:
            paths = sorted(self.folder.iterdir())
        except FileNotFoundError:
            return
        except OSError as error:
            self._warn(str(self.folder), f"the library {self.folder} cannot be read: {error.strerror}")
            return
        for path in paths:
            name = _NAME.fullmatch(path.name)
            if name is not None:
                yield name, path

    def _read(self, path: Path) -> StoredKernel | None:
        """The kernel in a file; None if it is gone or, with a warning, if it cannot be used."""
        try:
            status = path.stat()
            if not stat.S_ISREG(status.st_mode) or status.st_size > LARGEST_FILE:
                raise ValueError("it is no file, or too large")
            kernel = from_bytes(path.read_bytes())
            if _name(kernel) != path.name:
                raise ValueError("it holds another kernel than its name says")
        except FileNotFoundError:  # another process removed it
            return None
        except (OSError, ValueError) as error:
            start = path.stem.rpartition("-")[2][:8]
            self._warn(path.name, f"kernel {start} of the library is skipped: {error} (kforge library rm {start})")
            return None
        return kernel

    def _named(self, prefixes: Sequence[str]) -> list[Path]:
        files = list(self._files())
        chosen: dict[Path, None] = {}
        for prefix in prefixes:
            found = [path for name, path in files if prefix and name["id"].startswith(prefix.lower())]
            if not found:
                raise NotFound(f"the library has no kernel {prefix!r}", hint="its kernels: kforge library ls")
            if len(found) > 1:
                raise NotFound(
                    f"{prefix!r} is the start of {plural(len(found), 'kernel')} of the library", hint="give more digits"
                )
            chosen[found[0]] = None
        return list(chosen)

    def _unlink(self, paths: Sequence[Path]) -> int:
        for path in paths:
            try:
                path.unlink(missing_ok=True)
            except OSError as error:
                raise ProjectError(f"cannot remove {path}: {error.strerror}", hint="check its rights") from error
        return len(paths)

    def _remove_slower(self, kernel: StoredKernel) -> None:
        """Keep the best of those that can be compared with this one.

        Without a lock: what is not among the best of a part is not among the best of the whole, so whoever sees only
        a part of what others write removes nothing that should stay.
        """
        alike = [k for k in self.of(kernel.variant) if k.made_for == kernel.made_for]
        for slower in alike[BEST:]:
            (self.folder / _name(slower)).unlink(missing_ok=True)

    def _remove_stale(self) -> None:
        """Remove what a killed writer left."""
        for path in self.folder.iterdir():
            if not _PARTIAL.fullmatch(path.name):
                continue  # the folder may be somebody's, with files of theirs
            try:
                if time.time() - path.stat().st_mtime > _STALE_S:
                    path.unlink(missing_ok=True)
            except OSError:
                continue

    def _warn(self, about: str, text: str) -> None:
        """Once in a run: a search asks for the same kernels again and again."""
        if about not in self._warned:
            self._warned.add(about)
            logger.warning("%s", text)


def _name(kernel: StoredKernel) -> str:
    return f"{library_key(kernel.variant)}-{kernel.id}.json"


def _fastest_first(kernels: Iterable[StoredKernel]) -> tuple[StoredKernel, ...]:
    return tuple(sorted(kernels, key=lambda k: (-k.dispatch.median, k.id)))


def _first_known_as(kernel: StoredKernel, known: StoredKernel) -> StoredKernel:
    return replace(
        kernel, generator=known.generator, notes=known.notes, schedule=known.schedule,
        language_model=known.language_model, model=known.model,
    )  # fmt: skip
