"""What this user trusts, as plain data and as tables. Owns `TrustReport`, `KeysReport`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from kernelforge.digest import Json
from kernelforge.package.signing import fingerprint
from kernelforge.report.grid import Column, Grid, Record, cells
from kernelforge.report.tables import facts_grid


@dataclass(frozen=True, slots=True, kw_only=True)
class TrustReport:
    """What is trusted from now on, or no more.

    Attributes:
        keys: public keys. hashes: hex sha256 of files. trusted: False: no more.
    """

    keys: tuple[str, ...] = ()
    hashes: tuple[str, ...] = ()
    trusted: bool

    def to_json(self) -> dict[str, Json]:
        return {"keys": list(self.keys), "hashes": list(self.hashes), "trusted": self.trusted}

    @property
    def sentence(self) -> str:
        """What was done, for people."""
        what = [f"whatever {fingerprint(key)} signs" for key in self.keys]
        what += [f"the file with sha256:{digest}" for digest in self.hashes]
        return f"{' and '.join(what)} {'is trusted from now on' if self.trusted else 'is trusted no more'}"


@dataclass(frozen=True, slots=True, kw_only=True)
class KeysReport:
    """Who and what is trusted.

    Attributes:
        folder: where that is written down. local: this machine's public key, "" if nothing was signed here yet.
        keys, hashes: public keys and hex sha256 of files, with their names for people.
    """

    folder: str
    local: str
    keys: Mapping[str, str] = field(default_factory=dict)
    hashes: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Json]:
        return {"folder": self.folder, "local": self.local, "keys": dict(self.keys), "hashes": dict(self.hashes)}


def keys_grids(report: KeysReport) -> list[Grid]:
    """This machine's key; pinned keys and trusted files, if there are any."""
    local = f"{fingerprint(report.local)} ({report.local})" if report.local else "none: nothing was signed here yet"
    grids = [facts_grid([("this machine's key", local), ("in", report.folder)])]
    if report.keys:
        pinned = tuple(Record(cells(fingerprint(k), n, k)) for k, n in sorted(report.keys.items()))
        grids.append(Grid(title="Pinned keys", columns=_columns("fingerprint", "pinned with", "key"), records=pinned))
    if report.hashes:
        files = tuple(Record(cells(n, f"sha256:{h}")) for h, n in sorted(report.hashes.items()))
        grids.append(Grid(title="Trusted files", columns=_columns("file", "hash"), records=files))
    return grids


def _columns(*titles: str) -> tuple[Column, ...]:
    return tuple(Column(title=title) for title in titles)
