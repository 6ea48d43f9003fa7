"""The container: whatever is packed is unpacked, and nothing is decompressed that does not belong there."""

from __future__ import annotations

import io
import os
import zipfile

import pytest

from kernelforge.errors import PackageError
from kernelforge.package.archive import pack, unpack


@pytest.mark.parametrize("size", [0, 200, 300, 100_000, 3 << 20])
def test_whatever_is_packed_is_unpacked(size: int) -> None:
    files = {"first": b"x", "zeros": bytes(size), "text": b"0.0f, " * (size // 6), "noise": os.urandom(size // 100)}
    assert unpack(pack(files), first="first") == files
    assert pack(files) == pack(files)


def test_without_compression_it_is_what_the_library_would_write() -> None:
    files = {"first": b"x", "a/b.txt": b"text " * 1000, "empty": b""}
    data = pack(files, compress=False)
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        assert archive.testzip() is None
        assert {n: archive.read(n) for n in archive.namelist()} == files
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in files.items():
            info = zipfile.ZipInfo(name, date_time=(1980, 1, 1, 0, 0, 0))
            info.create_system, info.external_attr = 3, 0o100644 << 16
            archive.writestr(info, content)
    assert buffer.getvalue() == data
    assert unpack(data, first="first", plain_with="empty") == files
    with pytest.raises(PackageError, match="is compressed"):
        unpack(pack(files), first="first", plain_with="empty")


def test_many_tables_of_zeros_are_packed() -> None:
    files = {"first": b"x", **{f"zeros/{i}": bytes((1 << 20) - 1) for i in range(80)}}
    assert unpack(pack(files), first="first") == files


def test_many_small_bombs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kernelforge.package.archive.MAX_RATIO", 1 << 20)  # as somebody else would pack
    data = pack({"first": b"x", **{f"zeros/{i}": bytes((1 << 20) - 1) for i in range(100)}})
    monkeypatch.undo()
    assert len(data) < 1 << 17
    with pytest.raises(PackageError, match="together unpack to more than 250 times"):
        unpack(data, first="first")


def test_nothing_is_decompressed_if_a_name_is_not_expected(monkeypatch: pytest.MonkeyPatch) -> None:
    data = pack({"first": b"x", "second": b"y"})
    opened: list[object] = []
    monkeypatch.setattr(zipfile.ZipFile, "open", lambda *args, **kwargs: opened.append(args))
    with pytest.raises(PackageError, match="'second' does not belong there"):
        unpack(data, first="first", expected=lambda name: name == "first")
    assert not opened


@pytest.mark.parametrize("names", [("a", "a/b"), ("a/b/c", "a/b"), ("A", "a/b")])
def test_a_file_is_no_folder(names: tuple[str, str]) -> None:
    with pytest.raises(PackageError, match="in a folder that is a file"):
        unpack(pack({"first": b"x", **dict.fromkeys(names, b"y")}), first="first")
