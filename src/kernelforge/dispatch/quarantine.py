"""Kernels that failed on this machine, as files of the cache: the next process starts with them off. Owns `Quarantine`.

A record is for one binary (by its sha256), on one device, under one minor version of torch and one driver: what failed
there may be right elsewhere. A damaged record still counts; the sure way to be rid of one is to remove it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from kernelforge.atomic import write_atomically
from kernelforge.digest import digest
from kernelforge.dispatch.machine import Machine, torch_minor
from kernelforge.errors import EnvironmentMissing, NotFound

FOLDER = "quarantine"
COMMAND = "kforge cast quarantine clear"
_MAX_BYTES = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Quarantined:
    """One record.

    Attributes:
        key: names it; commands accept any unique prefix.
        binary: hex sha256. device, torch, driver: where it failed. kernel: the label of its variant.
        package: path of the package. error: the code that its launch returned.
        certain: False if the error was one that an earlier kernel may have caused.
        time: POSIX seconds.
    """

    key: str
    binary: str = ""
    device: str = ""
    torch: str = ""
    driver: str = ""
    kernel: str = ""
    package: str = ""
    error: int = 0
    certain: bool = False
    time: float = 0.0

    @property
    def date(self) -> str:
        """Its day in UTC, "2026-01-31"."""
        return time.strftime("%Y-%m-%d", time.gmtime(self.time))

    def __str__(self) -> str:
        """ "quarantined: error 700 on 2026-01-31; clear with kforge cast quarantine clear 0a1b2c3d"."""
        if not self.binary:
            what = "by a record that cannot be read"
        else:
            what = f"error {self.error} on {self.date}" + (
                "" if self.certain else ", which another kernel may have caused"
            )
        return f"quarantined: {what}; clear with {COMMAND} {self.key[:8]}"


class Quarantine:
    """The records of one cache folder. Any number of processes may use it at once."""

    def __init__(self, cache_dir: Path) -> None:
        self._folder = cache_dir / FOLDER

    def add(
        self, binary: str, *, device: str, machine: Machine, kernel: str, package: str, error: int, certain: bool
    ) -> Quarantined:
        """Keep a kernel from being used here again.

        Args:
            binary: hex sha256. device: name of the GPU, or "cpu". error: the code that its launch returned.

        Raises:
            EnvironmentMissing: the cache folder cannot be written to.
        """
        found = Quarantined(
            key=_key(binary, device, machine), binary=binary, device=device, torch=machine.torch,
            driver=machine.driver, kernel=kernel, package=package, error=error, certain=certain, time=time.time(),
        )  # fmt: skip
        text = json.dumps({name: value for name, value in asdict(found).items() if name != "key"}, indent=1)
        try:
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            write_atomically(self._path(found.key), text.encode())
        except OSError as error_of_file:
            raise EnvironmentMissing(
                f"the failure of {kernel} cannot be kept in {self._folder}: {error_of_file}",
                hint="set KFORGE_CACHE_DIR to a folder that can be written to",
            ) from error_of_file
        return found

    def find(self, binary: str, *, device: str, machine: Machine) -> Quarantined | None:
        """The record of a binary on a device of this machine."""
        key = _key(binary, device, machine)
        return _read(self._path(key)) if self._path(key).exists() else None

    def list(self) -> tuple[Quarantined, ...]:
        """All records, the latest first."""
        return tuple(sorted(map(_read, self._folder.glob("*.json")), key=lambda q: -q.time))

    def clear(self, prefix: str) -> tuple[Quarantined, ...]:
        """Remove the record whose key begins so, or all of them if the prefix is empty; returns what was removed.

        Raises:
            NotFound: no key begins so, or several do.
        """
        chosen = [q for q in self.list() if q.key.startswith(prefix)]
        if prefix and len(chosen) != 1:
            many = f"{len(chosen)} records begin" if chosen else "no record begins"
            raise NotFound(f"{many} with {prefix!r}", hint="kforge cast quarantine ls lists them")
        for quarantined in chosen:
            self._path(quarantined.key).unlink(missing_ok=True)
        return tuple(chosen)

    def _path(self, key: str) -> Path:
        return self._folder / f"{key}.json"


def _key(binary: str, device: str, machine: Machine) -> str:
    return digest([binary, device, torch_minor(machine.torch), machine.driver])[:32]


def _read(path: Path) -> Quarantined:
    try:
        if path.stat().st_size > _MAX_BYTES:
            return Quarantined(key=path.stem)
        data = json.loads(path.read_text())
        assert isinstance(data, Mapping)
        texts = {name: str(data[name]) for name in ("binary", "device", "torch", "driver", "kernel", "package")}
        return Quarantined(
            key=path.stem, error=int(data["error"]), certain=bool(data["certain"]), time=float(data["time"]), **texts
        )
    except (OSError, ValueError, TypeError, KeyError, AssertionError, RecursionError):
        return Quarantined(key=path.stem)
