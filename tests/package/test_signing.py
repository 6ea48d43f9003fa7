"""Keys and signatures: one key for each user of a machine, for nobody else, and the same when many ask at once."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from kernelforge.errors import EnvironmentMissing, ForgeError
from kernelforge.package.signing import (
    KEY_BYTES,
    Signer,
    fingerprint,
    local_public_key,
    local_signer,
    verify_signature,
)

# The first test of RFC 8032, section 7.1.
SEED = "9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60"
PUBLIC = "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a"
SIGNATURE = (
    "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e065224901555fb8821590a33bacc61e39701cf9b46bd25bf5f0595bbe2465"
    "5141438e7a100b"
)
ORDER = 2**252 + 27742317777372353535851937790883648493


def key_of(config_dir: Path) -> Path:
    return config_dir / "keys" / "local.ed25519"


def test_it_is_the_ed25519_of_the_standard() -> None:
    signer = Signer.of(bytes.fromhex(SEED))
    assert (signer.public_key, signer.sign(b"").hex()) == (PUBLIC, SIGNATURE)
    assert verify_signature(PUBLIC, bytes.fromhex(SIGNATURE), b"")


def test_a_signature_is_of_these_bytes_by_this_key(tmp_path: Path) -> None:
    signer, other = local_signer(tmp_path), Signer.of(bytes(KEY_BYTES))
    signature = signer.sign(b"data")
    assert signature == signer.sign(b"data")
    assert verify_signature(signer.public_key, signature, b"data")
    assert not verify_signature(signer.public_key, signature, b"date")
    assert not verify_signature(other.public_key, signature, b"data")
    for wrong in (b"", signature[:-1], signature + b"\0", bytes(64)):
        assert not verify_signature(signer.public_key, wrong, b"data")
    for key in ("", "0" * 64, "f" * 64, signer.public_key.upper(), signer.public_key + "\n", "x" * 64):
        assert not verify_signature(key, signature, b"data")


def test_a_signature_has_one_form_only(tmp_path: Path) -> None:
    """With the order of the group added to its second half, it would be another signature of the same bytes."""
    signer = local_signer(tmp_path)
    signature = signer.sign(b"data")
    shifted = (int.from_bytes(signature[32:], "little") + ORDER).to_bytes(32, "little")
    assert not verify_signature(signer.public_key, signature[:32] + shifted, b"data")


def test_the_key_is_made_once_and_for_its_owner_alone(tmp_path: Path) -> None:
    config_dir = tmp_path / "a" / "b"
    assert local_public_key(config_dir) == ""
    assert not config_dir.exists()  # looking makes no key
    signer = local_signer(config_dir)
    key = key_of(config_dir)
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    assert stat.S_IMODE(key.parent.stat().st_mode) == 0o700
    assert list(key.parent.iterdir()) == [key]
    assert len(key.read_bytes()) == KEY_BYTES
    assert local_signer(config_dir) == signer
    assert local_public_key(config_dir) == signer.public_key
    assert key.read_bytes().hex() not in repr(signer)


def test_with_a_careless_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        local_signer(tmp_path)
    finally:
        os.umask(before)
    assert stat.S_IMODE(key_of(tmp_path).stat().st_mode) == 0o600
    assert stat.S_IMODE(key_of(tmp_path).parent.stat().st_mode) == 0o700


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620])
def test_a_key_that_others_can_read_is_not_used(tmp_path: Path, mode: int) -> None:
    local_signer(tmp_path)
    key_of(tmp_path).chmod(mode)
    with pytest.raises(EnvironmentMissing, match="others may read the key") as caught:
        local_signer(tmp_path)
    assert f"chmod 600 {key_of(tmp_path)}" in caught.value.hint
    with pytest.raises(EnvironmentMissing, match="others may read the key"):
        local_public_key(tmp_path)


@pytest.mark.parametrize("size", [0, 31, 33])
def test_a_damaged_key_is_not_replaced(tmp_path: Path, size: int) -> None:
    local_signer(tmp_path)
    key_of(tmp_path).write_bytes(bytes(size))
    with pytest.raises(EnvironmentMissing, match="damaged"):
        local_signer(tmp_path)
    assert key_of(tmp_path).read_bytes() == bytes(size)


def test_links_are_not_followed(tmp_path: Path) -> None:
    local_signer(tmp_path / "mine")
    key_of(tmp_path / "links").parent.mkdir(parents=True, mode=0o700)
    key_of(tmp_path / "links").symlink_to(key_of(tmp_path / "mine"))
    with pytest.raises(ForgeError, match="cannot be read"):
        local_signer(tmp_path / "links")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "keys").symlink_to(tmp_path / "mine" / "keys")
    with pytest.raises(EnvironmentMissing, match="not a folder of this user"):
        local_signer(tmp_path / "folder")


ASK = """
import sys
from pathlib import Path
from kernelforge.package.signing import local_signer
sys.stdin.read()
print(local_signer(Path(sys.argv[1])).public_key)
"""


def test_many_processes_that_ask_at_once_get_the_same_key(tmp_path: Path) -> None:
    command = [sys.executable, "-c", ASK, str(tmp_path)]
    askers = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    for asker in askers:
        assert asker.stdin is not None
        asker.stdin.close()
        asker.stdin = None
    answers = {asker.communicate(timeout=60)[0] for asker in askers}
    assert answers == {local_public_key(tmp_path) + "\n"}
    assert [p.name for p in key_of(tmp_path).parent.iterdir()] == ["local.ed25519"]


def test_a_key_that_somebody_signed_with_already_is_never_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process makes the key while this one is about to."""
    real, others = os.fsync, list[str]()

    def meanwhile(descriptor: int) -> None:
        real(descriptor)
        if not others:
            others.append("")
            others[0] = local_signer(tmp_path).public_key

    monkeypatch.setattr(os, "fsync", meanwhile)
    assert local_signer(tmp_path).public_key == others[0] == local_public_key(tmp_path)


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ForgeError, match="cannot be read or written") as caught:
        local_signer(tmp_path / "file")
    assert "KFORGE_CONFIG_DIR" in caught.value.hint


def test_fingerprints_are_short_and_differ(tmp_path: Path) -> None:
    one, two = fingerprint(PUBLIC), fingerprint(local_signer(tmp_path).public_key)
    assert one != two
    assert [len(part) for part in one.split("-")] == [4, 4, 4, 4]
