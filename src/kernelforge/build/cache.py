"""The content-addressed build cache. The key is everything that decides the binary's bytes.

An entry is a folder `builds/<key>/` with `kernel.so`, `source.*` and `build.json`. It is written under a temporary name
and renamed, so a killed build leaves nothing that blocks and two builders of one key cannot disturb each other.
"""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from kernelforge.build.types import Artifact
from kernelforge.digest import digest, digest_bytes

_STALE_S = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildCache:
    """Built binaries below one folder. Thread-safe, safe with many processes."""

    folder: Path

    def key(self, *, text: str, compiler: str, flags: tuple[str, ...], target: str) -> str:
        return digest([text, compiler, list(flags), target])

    def get(self, key: str) -> Artifact | None:
        """The cached artifact, or None if absent or damaged (a damaged entry is removed)."""
        entry = self.folder / key
        try:
            record = json.loads((entry / "build.json").read_text())
            if digest_bytes((entry / "kernel.so").read_bytes()) == record["digest"]:
                return _artifact(entry, record, seconds=0.0)
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError):
            pass
        shutil.rmtree(entry, ignore_errors=True)
        return None

    def scratch(self) -> Path:
        """A fresh temporary folder on the cache's file system; the caller removes it or hands it to `put`."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self._remove_stale()
        return Path(tempfile.mkdtemp(prefix=".build-", dir=self.folder))

    def put(self, key: str, scratch: Path, record: Mapping[str, object], *, seconds: float) -> Artifact:
        """Turn a scratch that holds `kernel.so` into the entry of `key`."""
        complete = {**record, "digest": digest_bytes((scratch / "kernel.so").read_bytes())}
        (scratch / "build.json").write_text(json.dumps(complete, indent=1))
        entry = self.folder / key
        try:
            scratch.rename(entry)
        except OSError:  # another builder of the same key was first; its binary is as good as ours
            shutil.rmtree(scratch, ignore_errors=True)
            existing = self.get(key)
            if existing is not None:
                return existing
            raise
        return _artifact(entry, complete, seconds=seconds)

    def _remove_stale(self) -> None:
        for old in self.folder.glob(".build-*"):
            try:
                if time.time() - old.stat().st_mtime > _STALE_S:
                    shutil.rmtree(old, ignore_errors=True)
            except FileNotFoundError:
                continue


def _artifact(entry: Path, record: Mapping[str, object], *, seconds: float) -> Artifact:
    flags = record["flags"]
    assert isinstance(flags, list | tuple)
    return Artifact(
        digest=str(record["digest"]), path=entry / "kernel.so", backend=str(record["backend"]),
        target=str(record["target"]), compiler=str(record["compiler"]), flags=tuple(str(f) for f in flags),
        seconds=seconds, log=str(record["log"]),
    )  # fmt: skip
