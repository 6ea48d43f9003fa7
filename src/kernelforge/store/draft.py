"""A project in the making: a hidden folder beside its destination that appears there whole, or not at all.

A capture writes examples for minutes before the cards are known. A failure in between, or an exception of the model,
must leave neither half a project nor harm the one that stood there before.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from kernelforge.cards.examples import ExampleStore
from kernelforge.cards.serial import save_cards
from kernelforge.cards.types import OperatorCard
from kernelforge.digest import Json, canonical_json
from kernelforge.errors import ProjectError, UsageError
from kernelforge.store.blobs import write_atomically
from kernelforge.store.database import create_database

DATABASE = "nodes.db"
CARDS = "cards"
EXAMPLES = "examples"
BLOBS = "blobs"
CAPTURE = "capture.json"


class Draft:
    """Open a draft with `start_draft`; write examples into `examples`; then `publish` once."""

    def __init__(self, destination: Path, folder: Path, *, overwrite: bool) -> None:
        self.destination = destination
        self.folder = folder
        self.overwrite = overwrite
        self.examples = ExampleStore(folder / EXAMPLES)

    def publish(
        self, *, model: str, device: str, cards: Sequence[OperatorCard], capture_info: Mapping[str, Json],
        created: float | None = None, fill: Callable[[Path], object] | None = None,
    ) -> None:  # fmt: skip
        """Write the rest of the project and move it to its destination.

        Args:
            created: POSIX seconds, by default now.
            fill: called with the folder of the complete project before it is moved; what it raises ends the draft.

        Raises:
            ProjectError: the disk is full or not writable, or `capture_info` is no JSON; the destination is as before.
        """
        try:
            info = canonical_json(dict(capture_info)).encode()
        except ValueError as error:
            raise ProjectError(f"what the capture says of itself cannot be stored: {error}") from error
        try:
            save_cards(cards, self.folder / CARDS)
            (self.folder / EXAMPLES).mkdir(exist_ok=True)
            (self.folder / BLOBS).mkdir()
            write_atomically(self.folder / CAPTURE, info)
            made = time.time() if created is None else created
            create_database(self.folder / DATABASE, model=model, device=device, created=made)
            if fill is not None:
                fill(self.folder)
            self._move()
        except OSError as error:
            raise _unwritable(self.destination, error) from error

    def _move(self) -> None:
        if not (self.overwrite and self.destination.exists()):
            # Fails if another process published there meanwhile: a folder only replaces an empty one.
            self.folder.rename(self.destination)
            return
        old = Path(tempfile.mkdtemp(dir=self.destination.parent, prefix=f".{self.destination.name}.old-"))
        self.destination.rename(old)
        try:
            self.folder.rename(self.destination)
        except BaseException:
            old.rename(self.destination)
            raise
        shutil.rmtree(old, ignore_errors=True)


@contextmanager
def start_draft(destination: Path, *, overwrite: bool = False) -> Iterator[Draft]:
    """A draft of a project at `destination`; what was not published is deleted at the end.

    Args:
        overwrite: replace a project that stands there, with all its trials. Other folders are never replaced.

    Raises:
        UsageError: something stands there. ProjectError: nothing can be written there.
    """
    destination = destination.absolute()
    try:
        _check_free(destination, overwrite=overwrite)
        destination.parent.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(dir=destination.parent, prefix=f".{destination.name}.draft-"))
        folder.chmod(0o777 & ~_umask())
    except OSError as error:
        raise _unwritable(destination, error) from error
    try:
        yield Draft(destination, folder, overwrite=overwrite)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _check_free(destination: Path, *, overwrite: bool) -> None:
    if not destination.exists():
        return
    if not destination.is_dir():
        raise UsageError(f"{destination} is a file, a project is a folder", hint="name another folder")
    if not any(destination.iterdir()):
        return
    if not (destination / DATABASE).exists():
        raise UsageError(f"{destination} holds other files and is no project", hint="name another folder")
    if not overwrite:
        raise UsageError(
            f"there is already a project at {destination}",
            hint="name another folder, or give --overwrite to replace it and its trials",
        )


def _umask() -> int:
    # The only way to read it is to set it.
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def _unwritable(destination: Path, error: OSError) -> ProjectError:
    return ProjectError(
        f"the project {destination} cannot be written: {error.strerror or error}",
        hint="check the folder's rights and the free space, or name another folder",
    )
