"""Signatures: this machine's own key, and checking those of others. Owns `Signer`.

Everything is Ed25519 (RFC 8032), which is deterministic: one key and the same bytes give the same signature. Whoever
signs puts a prefix of its own before the bytes, so that what was signed for one purpose is nothing for another.
"""

from __future__ import annotations

import os
import re
import secrets
import stat
from dataclasses import dataclass, field
from pathlib import Path

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from kernelforge.digest import digest_bytes
from kernelforge.errors import EnvironmentMissing, ForgeError

KEYS = "keys"
LOCAL_KEY = "local.ed25519"
KEY_BYTES = 32
SIGNATURE_BYTES = 64
_VARIABLE = "KFORGE_CONFIG_DIR"
_HEX_KEY = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Signer:
    """A private key that signs. It is in no `repr`.

    Attributes:
        public_key: hex of the 32 bytes by which others know the signer.
    """

    public_key: str
    _private: Ed25519PrivateKey = field(repr=False, compare=False)

    def sign(self, data: bytes) -> bytes:
        """The 64 bytes of the signature of `data`; the same data gives the same signature."""
        return self._private.sign(data)

    @classmethod
    def of(cls, seed: bytes) -> Signer:
        """The signer of a private key's 32 bytes.

        Raises:
            ValueError: `seed` has another length.
        """
        private = Ed25519PrivateKey.from_private_bytes(seed)
        return cls(public_key=private.public_key().public_bytes_raw().hex(), _private=private)


def local_signer(config_dir: Path) -> Signer:
    """This machine's key of this user, made when it is first asked for. Safe when many processes ask at once.

    It is 32 bytes in `keys/local.ed25519`, for its owner's eyes only.

    Args:
        config_dir: `Settings.config_dir`.

    Raises:
        EnvironmentMissing: others may read the key or replace it, or it is no key.
        ForgeError: it cannot be read or written.
    """
    path = config_dir / KEYS / LOCAL_KEY
    try:
        private_folder(path.parent, _VARIABLE)
        if not os.path.lexists(path):
            _create(path)
        return Signer.of(_read(path))
    except OSError as error:
        raise _no_key(path, error) from error


def local_public_key(config_dir: Path) -> str:
    """The public half of this machine's key, or "" if nothing was signed here yet. Makes none.

    Raises:
        EnvironmentMissing: others may read the key, or it is no key. ForgeError: it cannot be read.
    """
    path = config_dir / KEYS / LOCAL_KEY
    try:
        return Signer.of(_read(path)).public_key if os.path.lexists(path) else ""
    except OSError as error:
        raise _no_key(path, error) from error


def _no_key(path: Path, error: OSError) -> ForgeError:
    return ForgeError(
        f"the key {path} cannot be read or written: {error.strerror}", hint=f"set {_VARIABLE} to a folder of yours"
    )


def verify_signature(public_key: str, signature: bytes, data: bytes) -> bool:
    """Whether `signature` is that of `data` by the key; False also for what is no key or no signature.

    Args:
        public_key: 64 lower-case hex digits.
    """
    if not is_public_key(public_key) or len(signature) != SIGNATURE_BYTES:
        return False
    try:
        Ed25519PublicKey.from_public_bytes(bytes.fromhex(public_key)).verify(signature, data)
    except (InvalidSignature, ValueError):
        return False
    return True


def is_public_key(text: str) -> bool:
    """Whether the text is a public key as everything here writes it: 64 lower-case hex digits."""
    return bool(_HEX_KEY.fullmatch(text))


def fingerprint(public_key: str) -> str:
    """A short name of a key for people: four groups of four hex digits of its sha256. For reading, not for deciding."""
    name = digest_bytes(public_key.encode())[:16]
    return "-".join(name[i : i + 4] for i in range(0, 16, 4))


def private_folder(folder: Path, variable: str) -> None:
    """Make a folder that only this user can enter, or see that it is one.

    Args:
        variable: of the environment, by which the place can be changed.

    Raises:
        EnvironmentMissing: it is a link, or somebody else's. OSError: it cannot be made.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    folder.mkdir(mode=0o700, exist_ok=True)
    status = folder.lstat()
    if stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid() and status.st_mode & 0o077:
        folder.chmod(0o700)
        status = folder.lstat()
    check_private(status, folder, variable)


def check_private(status: os.stat_result, folder: Path, variable: str) -> None:
    """Raises EnvironmentMissing unless only this user can enter the folder with this status."""
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o077:
        raise EnvironmentMissing(
            f"{folder} is not a folder of this user", hint=f"remove it, or set {variable} to a folder of yours"
        )


def _create(path: Path) -> None:
    """Put a fresh key there, whole, unless another process was faster."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(secrets.token_bytes(KEY_BYTES))
            stream.flush()
            os.fsync(stream.fileno())
        # Unlike a rename, a link never replaces the key that somebody has signed with already.
        path.hardlink_to(temporary)
    except FileExistsError:
        pass
    finally:
        temporary.unlink(missing_ok=True)


def _read(path: Path) -> bytes:
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as stream:
        status = os.fstat(stream.fileno())
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
            raise EnvironmentMissing(f"the key {path} is not a file of this user", hint=f"remove it: rm {path}")
        if status.st_mode & 0o077:
            raise EnvironmentMissing(
                f"others may read the key {path}",
                hint=f"if nobody did: chmod 600 {path}; else remove it, and packages are signed by a new key",
            )
        seed = stream.read(KEY_BYTES + 1)
    if len(seed) != KEY_BYTES:
        raise EnvironmentMissing(
            f"the key {path} is damaged", hint="remove it; packages are then signed by a new key, and old ones unknown"
        )
    return seed
