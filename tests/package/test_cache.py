"""The cache of extracted binaries: for this user alone, named by content, and what was hashed is what is loaded."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from kernelforge.digest import digest_bytes
from kernelforge.errors import EnvironmentMissing, ForgeError
from kernelforge.package.reader import extract_binary
from kernelforge.package.types import Binary


def binary_of(data: bytes) -> Binary:
    return Binary(data=data, digest=digest_bytes(data), backend="cpp", target="x86-64", refusals=())


def test_a_binary_lands_under_its_hash_for_its_owner_alone(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        path = extract_binary(binary_of(b"code"), tmp_path / "a" / "cache")
    finally:
        os.umask(before)
    folder = tmp_path / "a" / "cache" / "packages"
    (file,) = folder.iterdir()
    assert (path.read_bytes(), path.resolve()) == (b"code", file)
    assert file.name == f"{digest_bytes(b'code')}.so"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_what_is_there_is_hashed_again_and_replaced_if_it_was_changed(tmp_path: Path) -> None:
    binary = binary_of(b"code")
    file = extract_binary(binary, tmp_path).resolve()
    inode = file.stat().st_ino
    assert extract_binary(binary, tmp_path).resolve().stat().st_ino == inode  # it is not written again
    file.write_bytes(b"evil")
    assert extract_binary(binary, tmp_path).read_bytes() == b"code"
    file.unlink()
    (tmp_path / "evil.so").write_bytes(b"code")
    file.symlink_to(tmp_path / "evil.so")
    assert not extract_binary(binary, tmp_path).is_symlink()
    assert {p.name for p in (tmp_path / "packages").iterdir()} == {file.name}


def test_a_folder_put_in_its_place_is_not_what_is_loaded(tmp_path: Path) -> None:
    """Whoever can rename the folders above the cache can show another one under its name, between hash and load."""
    binary = binary_of(b"code")
    path = extract_binary(binary, tmp_path / "cache")
    (tmp_path / "cache").rename(tmp_path / "moved")
    (tmp_path / "cache" / "packages").mkdir(parents=True, mode=0o700)
    (tmp_path / "cache" / "packages" / f"{binary.digest}.so").write_bytes(b"evil")
    assert path.read_bytes() == b"code"


def test_others_are_shut_out_of_a_folder_that_is_ours(tmp_path: Path) -> None:
    (tmp_path / "packages").mkdir(mode=0o755)
    extract_binary(binary_of(b"code"), tmp_path)
    assert stat.S_IMODE((tmp_path / "packages").stat().st_mode) == 0o700


def test_the_cache_must_be_this_users(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "packages").symlink_to("elsewhere")
    with pytest.raises(EnvironmentMissing, match="not a folder of this user"):
        extract_binary(binary_of(b"code"), tmp_path)


def test_a_cache_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "packages").write_text("")
    with pytest.raises(ForgeError) as caught:
        extract_binary(binary_of(b"code"), tmp_path)
    assert "KFORGE_CACHE_DIR" in caught.value.hint


def test_a_process_that_closes_all_descriptors_can_load_again(tmp_path: Path) -> None:
    first = extract_binary(binary_of(b"code"), tmp_path / "one")
    os.close(int(first.parent.name))
    assert extract_binary(binary_of(b"code"), tmp_path / "one").read_bytes() == b"code"
    second = extract_binary(binary_of(b"code"), tmp_path / "two")
    os.close(int(second.parent.name))
    with (tmp_path / "other").open("wb") as stream:  # gets the number of the one that was closed
        assert stream.fileno() == int(second.parent.name)
        assert extract_binary(binary_of(b"code"), tmp_path / "two").read_bytes() == b"code"
        assert stream.write(b"still open") == 10


def test_folders_that_are_gone_are_not_kept_open(tmp_path: Path) -> None:
    def descriptors() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    before = descriptors()
    for i in range(8):
        cache = tmp_path / str(i)
        for _ in range(3):
            path = extract_binary(binary_of(b"code"), cache).resolve()
        path.unlink()
        path.parent.rmdir()
    assert descriptors() <= before + 1
