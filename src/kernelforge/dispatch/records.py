"""What was certified again on this machine, as `kforge cast recertify` leaves it: signed files under the user's
configuration folder. Owns `LocalRecord`, `Environment`.

A record is for one package (by the digest of its file), each of its entries for one binary, and all of it for one
environment: device, driver branch, minor version of torch. It counts only if this user's own key signed it: it makes
kernels run that would be off, so nobody else may write one. One that does not count is left out, and the log says why;
the package's own decisions hold then, as if there were none.

    records/<digest of the package>/<key of the environment>.json, for its owner alone

Several machines may share one home folder: each finds its own environment's file.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from kernelforge.atomic import write_atomically
from kernelforge.digest import Json, canonical_json, digest
from kernelforge.dispatch.machine import Machine, binary_for, driver_branch, torch_minor
from kernelforge.errors import ForgeError
from kernelforge.package.types import Decision, Entry, JsonObject, Off, Package, Use

_LOG = logging.getLogger(__name__)

FOLDER = "records"
FORMAT, VERSION = "kernelforge.recertification", 1
MAX_BYTES = 64 << 20

_SIGNED = b"kernelforge.recertification\n"
"""Stands before what is signed, so that a signature of anything else is none of a record."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """Where a verdict and times hold.

    Attributes:
        device: "cpu" or "cuda". device_name: what the GPU, or the CPU, calls itself.
        capability: "sm_90", "" of a CPU. driver: its full version, "" of a CPU; only its branch counts.
        torch: its full version; only its minor version counts.
    """

    device: str
    device_name: str
    capability: str
    driver: str
    torch: str

    @property
    def key(self) -> str:
        """What counts, as a name of a file."""
        what = [self.device, self.device_name, self.capability, driver_branch(self.driver), torch_minor(self.torch)]
        return digest(what)[:16]

    def __str__(self) -> str:
        driver = f", driver {self.driver}" if self.driver else ""
        return f"{self.device_name or self.device}{driver}, torch {self.torch}"

    def to_json(self) -> JsonObject:
        return {
            "device": self.device, "device_name": self.device_name, "capability": self.capability,
            "driver": self.driver, "torch": self.torch,
        }  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class CertifiedAgain:
    """One entry as it was judged and timed here.

    Attributes:
        binary: hex sha256 of the binary that was.
        decisions: for each mode of dispatch, instead of the package's. measurement: likewise.
        verdict: what the judge said, in short: `verdict`, "accepted" or "rejected", with the reason.
    """

    binary: str
    decisions: Mapping[str, Decision]
    measurement: JsonObject
    verdict: JsonObject

    def to_json(self) -> JsonObject:
        return {
            "binary": self.binary, "measurement": self.measurement, "verdict": self.verdict,
            "decisions": {m: None if isinstance(d, Use) else d.reason for m, d in self.decisions.items()},
        }  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalRecord:
    """What is known of one package in one environment; entries that are not there were not judged yet.

    Attributes:
        package: hex sha256 of its file. made: POSIX seconds of the last entry. entries: by variant id.
    """

    package: str
    environment: Environment
    made: float
    entries: Mapping[str, CertifiedAgain]

    def path(self, config_dir: Path) -> Path:
        """Where it belongs."""
        return config_dir / FOLDER / self.package / f"{self.environment.key}.json"

    def of(self, entry: Entry, machine: Machine) -> CertifiedAgain | None:
        """What is known of an entry, if it is of the binary that this machine would run."""
        found, binary = self.entries.get(entry.variant.id), binary_for(entry, machine)
        return found if found is not None and binary is not None and found.binary == binary.digest else None

    def to_json(self) -> JsonObject:
        return {
            "format": FORMAT, "version": VERSION, "package": self.package, "made": self.made,
            "environment": self.environment.to_json(),
            "entries": {key: entry.to_json() for key, entry in self.entries.items()},
        }  # fmt: skip


def environments(device: str, machine: Machine) -> tuple[Environment, ...]:
    """The environments of a machine for packages of a device type, the first GPU's first; none without a GPU."""
    if device == "cpu":
        found = [(machine.cpu, "", "")]
    else:
        pairs = zip(machine.device_names, machine.capabilities, strict=True)
        found = [(name, capability, machine.driver) for name, capability in pairs]
    made = (
        Environment(device=device, device_name=name, capability=capability, driver=driver, torch=machine.torch)
        for name, capability, driver in found
    )
    return tuple(dict.fromkeys(made))


def with_local_record(package: Package, machine: Machine, config_dir: Path) -> tuple[Package, frozenset[str]]:
    """The package with the decisions and times that were found here, and the ids of the variants that those are of.

    Args:
        config_dir: `Settings.config_dir`.
    """
    record = find_record(package, machine, config_dir)
    if record is None:
        return package, frozenset()
    entries, here = [], set()
    for entry in package.entries:
        again = record.of(entry, machine)
        if again is not None:
            here.add(entry.variant.id)
            entry = replace(entry, decisions=again.decisions, measurement=again.measurement)  # noqa: PLW2901
        entries.append(entry)
    return replace(package, entries=tuple(entries)), frozenset(here)


def find_record(package: Package, machine: Machine, config_dir: Path) -> LocalRecord | None:
    """The record of a package for this machine, or None. Why a file there does not count is logged."""
    wanted = {e.key: e for e in environments(package.header.device, machine)}
    best: LocalRecord | None = None
    for path in sorted((config_dir / FOLDER / package.digest).glob("*.json")):
        read = _read(path, config_dir)
        problem = read if isinstance(read, str) else _problem(read, package, wanted)
        if isinstance(read, str) or problem:
            _LOG.warning("the record %s of %s does not count: %s", path, package.path, problem)
        elif best is None or read.made > best.made:
            best = read
    return best


def write_record(record: LocalRecord, config_dir: Path) -> Path:
    """Sign a record with this user's key and put it in its place, whole or not at all.

    Raises:
        ForgeError: the folder cannot be written. EnvironmentMissing: it, or the key, is open to others.
    """
    from kernelforge.package.signing import local_signer, private_folder

    path = record.path(config_dir)
    folder = path.parent
    body = record.to_json()
    signer = local_signer(config_dir)
    signature = signer.sign(_signed(body)).hex()
    text = json.dumps({"signer": signer.public_key, "signature": signature, "record": body}, indent=1, allow_nan=False)
    try:
        for each in (folder.parent, folder):
            private_folder(each, "KFORGE_CONFIG_DIR")
        write_atomically(path, (text + "\n").encode())
    except OSError as error:
        raise ForgeError(
            f"the record {path} cannot be written: {error.strerror}", hint="set KFORGE_CONFIG_DIR to a folder of yours"
        ) from error
    return path


def _problem(record: LocalRecord, package: Package, wanted: Mapping[str, Environment]) -> str:
    """Why a record of ours is none of this package here, or ""."""
    if record.package != package.digest:
        return f"it is of another package, {record.package[:12]}"
    if record.environment.key not in wanted:
        here = " or ".join(map(str, wanted.values())) or "there is no GPU"
        return f"it is for {record.environment}; here: {here}"
    return ""


def _read(path: Path, config_dir: Path) -> LocalRecord | str:
    """The record in a file, or why it is none that counts."""
    from kernelforge.package.signing import local_public_key, verify_signature

    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as stream:
            data = stream.read(MAX_BYTES + 1)
        if len(data) > MAX_BYTES:
            return "it is too large"
        envelope = json.loads(data)
        signer, signature, body = envelope["signer"], bytes.fromhex(envelope["signature"]), envelope["record"]
        ours = local_public_key(config_dir)
        if not ours or signer != ours:
            return "another key signed it"
        if not verify_signature(ours, signature, _signed(body)):
            return "it was edited: the signature is not of this content"
        return _parse(body)
    except (OSError, ForgeError) as error:
        return f"it cannot be read: {error}"
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        return f"it is damaged: {error!r}"


def _parse(body: Mapping[str, Json]) -> LocalRecord:
    """Raises KeyError, TypeError or ValueError for what is no record of this version."""
    if (body["format"], body["version"]) != (FORMAT, VERSION):
        raise ValueError(f"format {body['format']!r}, version {body['version']!r}")
    environment = _object(body["environment"])
    made = body["made"]
    if not isinstance(made, int | float):
        raise TypeError("'made' is no number")
    return LocalRecord(
        package=str(body["package"]), made=float(made),
        environment=Environment(**{key: str(environment[key]) for key in Environment.__slots__}),
        entries={key: _parse_entry(_object(value)) for key, value in _object(body["entries"]).items()},
    )  # fmt: skip


def _parse_entry(raw: Mapping[str, Json]) -> CertifiedAgain:
    decisions: dict[str, Decision] = {
        mode: Use() if reason is None else Off(reason=str(reason)) for mode, reason in _object(raw["decisions"]).items()
    }
    return CertifiedAgain(
        binary=str(raw["binary"]), decisions=decisions, measurement=_object(raw["measurement"]),
        verdict=_object(raw["verdict"]),
    )  # fmt: skip


def _object(value: Json) -> Mapping[str, Json]:
    if not isinstance(value, Mapping):
        raise TypeError(f"not an object: {value!r}")
    return value


def _signed(body: Json) -> bytes:
    return _SIGNED + canonical_json(body).encode()
