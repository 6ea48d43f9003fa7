"""Whether a package may be loaded, which runs its native code: a decision as a value. Owns `trusted.json`.

Three things are trusted: what this machine's own key signed, what a pinned key signed, and a file by its hash. Nothing
else is, and nothing is ever trusted because somebody is offline, is root, or looked at the file before. Trust in a file
is trust in its bytes: a changed one asks again.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import shlex
import stat
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from kernelforge.atomic import write_atomically
from kernelforge.digest import Json
from kernelforge.errors import EnvironmentMissing, ForgeError, NotFound, PackageError, UntrustedPackage, UsageError
from kernelforge.package.signing import fingerprint, is_public_key, local_public_key
from kernelforge.package.strict_json import object_of, parse_object, text_of, whole_number_of
from kernelforge.package.types import Package
from kernelforge.settings import Settings

_LOG = logging.getLogger(__name__)

FILE_NAME = "trusted.json"
VERSION = 1
_HASH = re.compile(r"sha256:([0-9a-f]{64})")
_MAX_BYTES = 1 << 20

Reason: TypeAlias = Literal["this machine's key", "a pinned key", "its hash"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Trusted:
    """The package may be loaded.

    Attributes:
        by: what of it is trusted. signer: public key of whoever signed it, "" if nobody did.
    """

    by: Reason
    signer: str

    def __str__(self) -> str:
        return f"trusted by {self.by}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Unknown:
    """Nobody here has said to trust the package. signer: public key of whoever signed it, "" if nobody did."""

    signer: str

    def __str__(self) -> str:
        return "not trusted: its signer is unknown here" if self.signer else "not trusted: nobody signed it"


Trust: TypeAlias = "Trusted | Unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrustList:
    """What this user trusts beside the own key. Both are names for people, by public key and by hex sha256."""

    keys: Mapping[str, str]
    hashes: Mapping[str, str]


def trust_of(package: Package, settings: Settings, *, given: str | Collection[str] = ()) -> Trust:
    """Whether the package may be loaded.

    Args:
        settings: with its `config_dir`, and `trust` of the environment.
        given: hashes that are trusted this time, each "sha256:" and 64 hex digits.

    Raises:
        UsageError: `given`, or KFORGE_TRUST, holds something else.
        EnvironmentMissing: the user's key or list of trusted ones is damaged, or others can write to it.
    """
    if package.digest in {*_hashes(given, "trust"), *_hashes(settings.trust, "KFORGE_TRUST")}:
        return Trusted(by="its hash", signer=package.signer)
    if package.signer and package.signer == local_public_key(settings.config_dir):
        return Trusted(by="this machine's key", signer=package.signer)
    trusted = read_trusted(settings.config_dir)
    if package.signer in trusted.keys:
        return Trusted(by="a pinned key", signer=package.signer)
    if package.digest in trusted.hashes:
        return Trusted(by="its hash", signer=package.signer)
    return Unknown(signer=package.signer)


def require_trust(package: Package, settings: Settings, *, given: str | Collection[str] = ()) -> Trusted:
    """Go on only with a package that may be loaded. Asks nobody. See `trust_of`.

    Raises:
        UntrustedPackage: it may not; says what to type if it should.
    """
    decision = trust_of(package, settings, given=given)
    if isinstance(decision, Unknown):
        raise untrusted(package)
    if decision.by == "a pinned key":
        _LOG.info("%s: signed by the pinned key %s", package.path, fingerprint(decision.signer))
    return decision


def untrusted(package: Package) -> UntrustedPackage:
    """The refusal of a package, with the command that would trust it."""
    path = shlex.quote(str(package.path))
    signed = (
        f"is signed by {fingerprint(package.signer)}, whom nobody here has said to trust"
        if package.signer
        else f"is of format version {package.header.format_version}, which is not signed"
    )
    return UntrustedPackage(
        f"{package.path}: it {signed}; loading it would run its native code",
        hint=f"look into it: kforge cast inspect {path}; to trust this very file: kforge cast trust {path}, "
        f"or say trust='sha256:{package.digest}' in Python, or KFORGE_TRUST=sha256:{package.digest}",
    )


def read_trusted(config_dir: Path) -> TrustList:
    """The pinned keys and trusted hashes of this user; none if there is no list.

    Raises:
        EnvironmentMissing: the list is damaged, or others can write to it. ForgeError: it cannot be read.
    """
    path = config_dir / FILE_NAME
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return TrustList(keys={}, hashes={})
    except OSError as error:
        raise ForgeError(f"cannot read {path}: {error.strerror}", hint="check its rights") from error
    with os.fdopen(descriptor, "rb") as stream:
        status = os.fstat(stream.fileno())
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o022:
            raise EnvironmentMissing(
                f"others can write to {path}", hint=f"look at what it trusts, then: chmod 600 {shlex.quote(str(path))}"
            )
        data = stream.read(_MAX_BYTES + 1)
    try:
        return _parse(data)
    except PackageError as error:
        raise EnvironmentMissing(
            f"{path} is damaged: {error.message}", hint="repair it, or remove it and say again what to trust"
        ) from error


def pin_key(config_dir: Path, key: str, name: str) -> None:
    """Trust whatever this key signs, from now on. name: of it, for people.

    Raises:
        UsageError: not a public key. ForgeError: the list cannot be written. See also `read_trusted`.
    """
    if not is_public_key(key):
        raise UsageError(f"{key!r} is no public key", hint="one is 64 lower-case hex digits: kforge cast inspect FILE")
    with _edited(config_dir) as edit:
        edit.keys[key] = name


def trust_hash(config_dir: Path, digest: str, name: str) -> None:
    """Trust the file with this hex sha256, from now on. name: of it, for people.

    Raises:
        UsageError: not a sha256. ForgeError: the list cannot be written. See also `read_trusted`.
    """
    (digest,) = _hashes([f"sha256:{digest}"], "hash")
    with _edited(config_dir) as edit:
        edit.hashes[digest] = name


def distrust(config_dir: Path, *, keys: Collection[str] = (), hashes: Collection[str] = ()) -> int:
    """Take keys and hashes off the list. Returns how many were on it.

    Raises:
        ForgeError: the list cannot be written. See also `read_trusted`.
    """
    with _edited(config_dir) as edit:
        found = [*(k for k in keys if k in edit.keys), *(h for h in hashes if h in edit.hashes)]
        edit.keys = {k: name for k, name in edit.keys.items() if k not in keys}
        edit.hashes = {h: name for h, name in edit.hashes.items() if h not in hashes}
    return len(found)


def named_in(config_dir: Path, what: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The keys and hashes on the list that somebody names.

    Args:
        what: a public key or its fingerprint, "sha256:" and a digest, or the path of a file, for its hash.

    Raises:
        NotFound: none. See also `read_trusted`.
    """
    trusted = read_trusted(config_dir)
    wanted = what.removeprefix("sha256:")
    if Path(what).is_file():
        with Path(what).open("rb") as stream:
            wanted = hashlib.file_digest(stream, "sha256").hexdigest()
    keys = tuple(key for key in trusted.keys if what in {key, fingerprint(key)})
    hashes = tuple(digest for digest in trusted.hashes if digest == wanted)
    if not (keys or hashes):
        raise NotFound(f"{what!r} is not trusted, so there is nothing to take back", hint="list it: kforge cast keys")
    return keys, hashes


def _hashes(given: str | Collection[str], where: str) -> frozenset[str]:
    found = set()
    for text in [given] if isinstance(given, str) else given:
        match = _HASH.fullmatch(text)
        if match is None:
            raise UsageError(f"{where}: {text!r} is not the hash of a package", hint="write sha256: and 64 hex digits")
        found.add(match[1])
    return frozenset(found)


def _parse(data: bytes) -> TrustList:
    if len(data) > _MAX_BYTES:
        raise PackageError(f"it is longer than {_MAX_BYTES} bytes")
    raw = parse_object(data, FILE_NAME)
    if whole_number_of(raw, "version", FILE_NAME) != VERSION:
        raise PackageError(f"version {raw['version']} is not {VERSION}")
    lists = [object_of(raw, "keys", FILE_NAME), object_of(raw, "hashes", FILE_NAME)]
    for each in lists:
        for name in each:
            text_of(each, name, FILE_NAME)
            if not is_public_key(name):  # a sha256 is written like a key
                raise PackageError(f"{name!r} is neither a key nor a hash")
    return TrustList(**{k: {n: str(v) for n, v in e.items()} for k, e in zip(("keys", "hashes"), lists, strict=True)})


class _Edit:
    """What the list is to become."""

    def __init__(self, before: TrustList) -> None:
        self.keys, self.hashes = dict(before.keys), dict(before.hashes)


@contextmanager
def _edited(config_dir: Path) -> Iterator[_Edit]:
    """The list, for changing it; written when the block ends, and no change by another process is lost."""
    from filelock import FileLock  # not for those who only load

    path = config_dir / FILE_NAME
    try:
        config_dir.mkdir(parents=True, exist_ok=True)
        with FileLock(config_dir / f".{FILE_NAME}.lock", mode=0o600):
            edit = _Edit(read_trusted(config_dir))
            yield edit
            value: Json = {"version": VERSION, "keys": edit.keys, "hashes": edit.hashes}
            write_atomically(path, (json.dumps(value, indent=1, sort_keys=True) + "\n").encode())
    except OSError as error:
        raise ForgeError(
            f"cannot write {path}: {error.strerror}", hint="set KFORGE_CONFIG_DIR to a folder of yours"
        ) from error
