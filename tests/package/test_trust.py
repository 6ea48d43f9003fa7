"""Who is trusted: this machine's key, pinned keys, files by their hash. Nothing else, and nobody is asked."""

from __future__ import annotations

import json
import logging
import os
import stat
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from kernelforge.errors import EnvironmentMissing, ForgeError, UntrustedPackage, UsageError
from kernelforge.package.reader import read_package
from kernelforge.package.signing import Signer
from kernelforge.package.trust import (
    Trusted,
    Unknown,
    distrust,
    pin_key,
    read_trusted,
    require_trust,
    trust_hash,
    trust_of,
)
from kernelforge.package.types import Entry, Header, Package
from kernelforge.package.writer import write_package
from kernelforge.settings import Settings, load_settings

STRANGER = Signer.of(bytes(32))
FIXTURE = Path(__file__).parent / "fixtures" / "format_1.cast"


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """Of a user who trusts nothing yet, and has no key."""
    return load_settings({"KFORGE_CONFIG_DIR": str(tmp_path / "config")})


@pytest.fixture
def foreign(tmp_path: Path, header: Header, entry_of: Callable[[str], Entry]) -> Package:
    return write_package(tmp_path / "foreign.cast", [entry_of("relu")], header=header, signer=STRANGER)


def test_what_was_written_here_is_trusted(written: Path) -> None:
    package = read_package(written)
    mine = load_settings()
    assert trust_of(package, mine) == Trusted(by="this machine's key", signer=package.signer)
    assert require_trust(package, mine).by == "this machine's key"


def test_a_stranger_is_not_trusted_and_looking_makes_no_key(foreign: Package, settings: Settings) -> None:
    assert trust_of(foreign, settings) == Unknown(signer=STRANGER.public_key)
    assert not settings.config_dir.exists()
    with pytest.raises(UntrustedPackage) as caught:
        require_trust(foreign, settings)
    assert caught.value.exit_code == 9
    assert f"kforge cast trust {foreign.path}" in caught.value.hint
    assert f"sha256:{foreign.digest}" in caught.value.hint


def test_what_another_user_of_this_machine_wrote_is_foreign(written: Path, settings: Settings) -> None:
    assert isinstance(trust_of(read_package(written), settings), Unknown)


def test_an_unsigned_package_says_what_to_type(settings: Settings) -> None:
    package = read_package(FIXTURE)
    assert trust_of(package, settings) == Unknown(signer="")
    with pytest.raises(UntrustedPackage, match="format version 1, which is not signed") as caught:
        require_trust(package, settings)
    assert f"kforge cast trust {FIXTURE}" in caught.value.hint
    # No key, and no list without a key, may ever match the empty signer.
    assert isinstance(trust_of(package, load_settings()), Unknown)


def test_trust_for_this_time(foreign: Package, settings: Settings) -> None:
    given = f"sha256:{foreign.digest}"
    for trusted in (
        trust_of(foreign, settings, given=given),
        trust_of(foreign, settings, given=["sha256:" + "0" * 64, given]),
        trust_of(foreign, replace(settings, trust=load_settings({"KFORGE_TRUST": f" {given} ,"}).trust)),
    ):
        assert trusted == Trusted(by="its hash", signer=STRANGER.public_key)
    assert isinstance(trust_of(foreign, settings, given="sha256:" + "0" * 64), Unknown)
    assert isinstance(trust_of(foreign, settings), Unknown)


@pytest.mark.parametrize(
    "text", ["", "yes", "*", "sha256:", "sha256:" + "0" * 63, "sha256:" + "A" * 64, "0" * 64, "md5:" + "0" * 64]
)
def test_trust_in_what_is_no_hash(foreign: Package, settings: Settings, text: str) -> None:
    with pytest.raises(UsageError, match=r"trust: .* is not the hash of a package"):
        trust_of(foreign, settings, given=text)
    with pytest.raises(UsageError, match="KFORGE_TRUST"):
        trust_of(foreign, replace(settings, trust=(text,)))


def test_a_trusted_file_that_changes_asks_again(
    foreign: Package, settings: Settings, header: Header, entry_of: Callable[[str], Entry]
) -> None:
    trust_hash(settings.config_dir, foreign.digest, "foreign.cast")
    assert trust_of(foreign, settings) == Trusted(by="its hash", signer=STRANGER.public_key)
    changed = write_package(foreign.path, [replace(entry_of("relu"), share=0.5)], header=header, signer=STRANGER)
    assert isinstance(trust_of(changed, settings), Unknown)


def test_a_pinned_key_is_logged(foreign: Package, settings: Settings, caplog: pytest.LogCaptureFixture) -> None:
    pin_key(settings.config_dir, STRANGER.public_key, "a friend")
    with caplog.at_level(logging.INFO, logger="kernelforge"):
        assert require_trust(foreign, settings).by == "a pinned key"
    assert "signed by the pinned key" in caplog.text
    assert isinstance(trust_of(read_package(FIXTURE), settings), Unknown)


def test_what_is_taken_off_the_list_is_unknown_again(foreign: Package, settings: Settings) -> None:
    config_dir = settings.config_dir
    pin_key(config_dir, STRANGER.public_key, "a friend")
    trust_hash(config_dir, foreign.digest, "foreign.cast")
    assert distrust(config_dir, keys=[STRANGER.public_key]) == 1
    assert trust_of(foreign, settings) == Trusted(by="its hash", signer=STRANGER.public_key)
    assert distrust(config_dir, hashes=[foreign.digest], keys=[STRANGER.public_key]) == 1
    assert isinstance(trust_of(foreign, settings), Unknown)
    assert distrust(config_dir, hashes=[foreign.digest]) == 0


def test_the_list_is_for_its_owner_alone(settings: Settings) -> None:
    before = os.umask(0)
    try:
        pin_key(settings.config_dir, STRANGER.public_key, "a friend")
    finally:
        os.umask(before)
    path = settings.config_dir / "trusted.json"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert {p.name for p in settings.config_dir.iterdir()} <= {"trusted.json", ".trusted.json.lock"}


@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666])
def test_a_list_that_others_can_write_to_is_not_believed(foreign: Package, settings: Settings, mode: int) -> None:
    pin_key(settings.config_dir, STRANGER.public_key, "a friend")
    (settings.config_dir / "trusted.json").chmod(mode)
    with pytest.raises(EnvironmentMissing, match="others can write to"):
        trust_of(foreign, settings)


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"version": 2, "keys": {}, "hashes": {}}', '{"version": 1, "keys": {"": ""}, "hashes": {}}',
     '{"version": 1, "keys": [], "hashes": {}}', '{"version": 1, "keys": {}, "hashes": {"' + "0" * 64 + '": 1}}'],
)  # fmt: skip
def test_a_damaged_list_stops_everything(foreign: Package, settings: Settings, text: str) -> None:
    settings.config_dir.mkdir()
    path = settings.config_dir / "trusted.json"
    path.write_text(text)
    path.chmod(0o600)
    with pytest.raises(EnvironmentMissing, match="is damaged"):
        trust_of(foreign, settings)
    with pytest.raises(EnvironmentMissing, match="is damaged"):
        pin_key(settings.config_dir, STRANGER.public_key, "a friend")
    assert path.read_text() == text


def test_what_is_no_key_and_no_hash_is_not_listed(settings: Settings) -> None:
    for key in ("", "x", STRANGER.public_key.upper()):
        with pytest.raises(UsageError):
            pin_key(settings.config_dir, key, "a friend")
        with pytest.raises(UsageError):
            trust_hash(settings.config_dir, key, "a file")


def test_a_list_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ForgeError, match="cannot write"):
        pin_key(tmp_path / "file", STRANGER.public_key, "a friend")


PIN = """
import sys
from pathlib import Path
from kernelforge.package.signing import Signer
from kernelforge.package.trust import pin_key
for i in range(10):
    pin_key(Path(sys.argv[1]), Signer.of(bytes([int(sys.argv[2]), i]) + bytes(30)).public_key, "a friend")
"""


def test_processes_that_edit_the_list_at_once_lose_nothing(settings: Settings) -> None:
    commands = [[sys.executable, "-c", PIN, str(settings.config_dir), str(i)] for i in range(3)]
    for process in [subprocess.Popen(command) for command in commands]:
        assert process.wait(timeout=60) == 0
    assert len(read_trusted(settings.config_dir).keys) == 30


def test_a_key_of_ones_own_that_others_can_read_is_no_reason_to_trust(written: Path, tmp_path: Path) -> None:
    mine = load_settings()
    package = read_package(written)
    key = mine.config_dir / "keys" / "local.ed25519"
    key.chmod(0o644)
    try:
        with pytest.raises(EnvironmentMissing, match="others may read the key"):
            trust_of(package, mine)
    finally:
        key.chmod(0o600)


def test_the_list_is_plain_json(settings: Settings) -> None:
    pin_key(settings.config_dir, STRANGER.public_key, "ä")
    assert json.loads((settings.config_dir / "trusted.json").read_text())["keys"] == {STRANGER.public_key: "ä"}
