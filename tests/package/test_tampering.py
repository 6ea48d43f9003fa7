"""Every way to damage or edit a package that we could think of is refused, and the message names what is wrong."""

from __future__ import annotations

import io
import json
import stat
import struct
import subprocess
import sys
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from kernelforge.errors import NotFound, PackageError
from kernelforge.package.archive import pack, unpack
from kernelforge.package.layout import CHECKSUMS, HEADER, MANIFEST, checksums
from kernelforge.package.reader import read_package

Files = dict[str, bytes]
ENTRY_FILES = ("variant.json", "kernel.cpp", "prelude.h", "kernel.so", "verdict.json", "measurement.json", "audit.json")


def files_of(path: Path) -> Files:
    return unpack(path.read_bytes(), first=HEADER)


def refuse(path: Path, data: bytes, match: str) -> None:
    edited = path.with_name("edited.cast")
    edited.write_bytes(data)
    with pytest.raises(PackageError, match=match) as caught:
        read_package(edited)
    assert str(edited) in str(caught.value)
    assert caught.value.hint


def zip_of(files: Mapping[str, bytes], change: Callable[[zipfile.ZipInfo], None] = lambda info: None) -> bytes:
    """Like `pack`, with each entry's description changed before it is written."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, data in files.items():
            info = zipfile.ZipInfo(name, date_time=(1980, 1, 1, 0, 0, 0))
            info.create_system, info.external_attr = 3, (stat.S_IFREG | 0o644) << 16
            change(info)
            archive.writestr(info, data)
    return buffer.getvalue()


def sealed(files: Files) -> Files:
    """The files with manifest and checksums made right again: an edit by someone who knows the format."""
    manifest = json.loads(files[MANIFEST])
    inner = {n: d for n, d in files.items() if n not in {MANIFEST, CHECKSUMS}}
    from kernelforge.digest import digest_bytes

    manifest["files"] = {n: {"size": len(d), "sha256": digest_bytes(d)} for n, d in inner.items()}
    result = {**files, MANIFEST: json.dumps(manifest).encode()}
    return {**result, CHECKSUMS: checksums(result)}


@pytest.mark.parametrize("name", [HEADER, MANIFEST, CHECKSUMS, *ENTRY_FILES])
def test_one_edited_byte(written: Path, name: str) -> None:
    files = files_of(written)
    full = next(n for n in files if n.endswith(name))
    data = bytearray(files[full])
    data[len(data) // 2] ^= 1
    refuse(written, pack({**files, full: bytes(data)}), full.replace(".", r"\.") if name != CHECKSUMS else "sha256")


@pytest.mark.parametrize("name", [MANIFEST, CHECKSUMS, *ENTRY_FILES])
def test_one_missing_file(written: Path, name: str) -> None:
    files = files_of(written)
    full = next(n for n in files if n.endswith(name))
    del files[full]
    refuse(written, pack(files), "missing|not in|differs")
    if name in ENTRY_FILES:
        refuse(written, pack(sealed(files)), f"{name} is not in the file")


@pytest.mark.parametrize("seal", [False, True])
def test_an_unlisted_file(written: Path, seal: bool) -> None:
    files = {**files_of(written), "variants/extra.so": b"x"}
    refuse(written, pack(sealed(files) if seal else files), "variants/extra.so")


def test_an_unlisted_file_with_right_checksums(written: Path) -> None:
    files = {**files_of(written), "variants/extra.so": b"x"}
    refuse(written, pack({**files, CHECKSUMS: checksums(files)}), "variants/extra.so is not listed in manifest.json")


def test_a_binary_exchanged_by_someone_who_fixes_the_manifest(written: Path) -> None:
    files = files_of(written)
    name = next(n for n in files if n.endswith("kernel.so"))
    refuse(written, pack(sealed({**files, name: b"other"})), "is not the binary that manifest.json names")


def test_a_variant_exchanged_by_someone_who_fixes_the_manifest(written: Path) -> None:
    files = files_of(written)
    name = next(n for n in files if n.endswith("variant.json"))
    wider = files[name].replace(b'"high": 64', b'"high": 9999')
    assert wider != files[name]
    refuse(written, pack(sealed({**files, name: wider})), "is not the variant that manifest.json names")
    refuse(written, pack(sealed({**files, name: b'{"operator": 1}'})), "does not describe a variant")


@pytest.mark.parametrize(
    "name", ["../evil", "/etc/evil", "variants/../../evil", "a\\b", "C:evil", "a//b", "./a", "a/", "caf\u00e9", "a\nb"]
)
def test_names_that_leave_the_package(written: Path, name: str) -> None:
    refuse(written, zip_of({**files_of(written), name: b"x"}), "name")


def test_names_that_differ_in_case_only(written: Path) -> None:
    files = files_of(written)
    refuse(written, zip_of({**files, "Manifest.json": files[MANIFEST]}), "twice")


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_a_name_that_is_there_twice(written: Path) -> None:
    buffer = io.BytesIO(written.read_bytes())
    with zipfile.ZipFile(buffer, "a") as archive:
        info = zipfile.ZipInfo(MANIFEST, date_time=(1980, 1, 1, 0, 0, 0))
        info.create_system, info.external_attr = 3, (stat.S_IFREG | 0o644) << 16
        archive.writestr(info, b"{}")
    refuse(written, buffer.getvalue(), "twice")


@pytest.mark.parametrize(
    ("mode", "match"), [(stat.S_IFLNK | 0o777, "plain file"), (stat.S_IFDIR | 0o755, "plain file"), (0, "plain file"),
                        (stat.S_IFREG | 0o4755, "plain file")]
)  # fmt: skip
def test_entries_that_are_no_plain_files(written: Path, mode: int, match: str) -> None:
    def change(info: zipfile.ZipInfo) -> None:
        if info.filename == MANIFEST:
            info.external_attr = mode << 16

    refuse(written, zip_of(files_of(written), change), match)


def test_header_not_first(written: Path) -> None:
    files = files_of(written)
    header = files.pop(HEADER)
    refuse(written, pack({**files, HEADER: header}), "HEADER.json is not the first entry")


def test_a_newer_format_says_so(written: Path) -> None:
    files = files_of(written)
    newer = files[HEADER].replace(b'"format_version": 1', b'"format_version": 2')
    refuse(written, pack(sealed({**files, HEADER: newer})), "format version 2 is newer than 1")


@pytest.mark.parametrize("version", [b"0", b"true", b'"1"', b"null"])
def test_a_version_that_is_none(written: Path, version: bytes) -> None:
    files = files_of(written)
    wrong = files[HEADER].replace(b'"format_version": 1', b'"format_version": ' + version)
    refuse(written, pack(sealed({**files, HEADER: wrong})), "does not describe")


@pytest.mark.parametrize("text", [b"", b"[]", b"{", b"\xff", b'{"a": NaN}', b"[" * 100_000])
def test_json_that_is_none(written: Path, text: bytes) -> None:
    files = files_of(written)
    name = next(n for n in files if n.endswith("measurement.json"))
    refuse(written, pack(sealed({**files, name: text})), "measurement.json is not")


def test_truncated_at_any_length(written: Path) -> None:
    data = written.read_bytes()
    for length in [0, 1, 30, 100, len(data) // 2, len(data) - 23, len(data) - 1]:
        refuse(written, data[:length], "ZIP")


@pytest.mark.parametrize("data", [b"not a zip", b"PK\x03\x04" + bytes(100), b"PK\x05\x06" + bytes(18)])
def test_not_a_package(written: Path, data: bytes) -> None:
    refuse(written, data, "ZIP|HEADER.json is not the first entry")


def test_bytes_that_belong_to_no_entry(written: Path) -> None:
    data = written.read_bytes()
    refuse(written, b"#!/bin/sh\n" + data, "does not follow|ZIP")
    refuse(written, data + b"tail", "ZIP|bytes")
    commented = bytearray(data + b"hello")
    commented[len(data) - 2 : len(data)] = struct.pack("<H", 5)
    refuse(written, bytes(commented), "bytes")


def test_a_local_header_that_says_something_else(written: Path) -> None:
    data = written.read_bytes()
    refuse(written, data.replace(b"HEADER.json", b"HEADER.JSON", 1), "another name|ZIP|differ")
    with zipfile.ZipFile(written) as archive:
        offset = archive.infolist()[1].header_offset
    for position in (6, 8, 14, 18, 22):  # flags, method, checksum, sizes
        edited = bytearray(data)
        edited[offset + position] ^= 1
        refuse(written, bytes(edited), "disagree")


def test_encrypted_entries(written: Path) -> None:
    data = bytearray(written.read_bytes())
    with zipfile.ZipFile(written) as archive:
        data[archive.infolist()[1].header_offset + 6] |= 1
        data[archive.start_dir + 8 + 46 + len(HEADER)] |= 1
    refuse(written, bytes(data), "encrypted")


def test_damaged_contents(written: Path) -> None:
    with zipfile.ZipFile(written) as archive:
        infos = archive.infolist()
    info = next(i for i in infos if i.compress_type == zipfile.ZIP_DEFLATED)
    data = bytearray(written.read_bytes())
    data[info.header_offset + 30 + len(info.filename) + info.compress_size // 2] ^= 0xFF
    refuse(written, bytes(data), f"{info.filename}.*damaged")


def test_a_bomb(written: Path) -> None:
    files = {**files_of(written), "variants/zeros": bytes(8 << 20)}

    def deflate(info: zipfile.ZipInfo) -> None:
        info.compress_type = zipfile.ZIP_DEFLATED

    refuse(written, zip_of(files, deflate), "'variants/zeros' unpacks to more than")


def test_extra_fields_and_unusual_compression(written: Path) -> None:
    files = files_of(written)

    def extra(info: zipfile.ZipInfo) -> None:
        info.extra = b"\x99\x99\x00\x00"

    def compression(info: zipfile.ZipInfo) -> None:
        info.compress_type = zipfile.ZIP_BZIP2

    refuse(written, zip_of(files, extra), "extra fields")
    refuse(written, zip_of(files, compression), "unusual compression")


def test_missing_and_unreadable(tmp_path: Path) -> None:
    with pytest.raises(NotFound):
        read_package(tmp_path / "none.cast")
    with pytest.raises(PackageError, match="is a folder, not a package"):
        read_package(tmp_path)


def test_any_single_byte_of_the_file_matters(written: Path) -> None:
    """Flip bytes all over the file: each one is either refused or changes nothing that is read."""
    data, want = written.read_bytes(), read_package(written)
    edited = written.with_name("edited.cast")
    for position in range(0, len(data), 97):
        changed = bytearray(data)
        changed[position] ^= 0x10
        edited.write_bytes(bytes(changed))
        try:
            package = read_package(edited)
        except PackageError:
            continue
        assert (package.header, package.entries) == (want.header, want.entries)


def test_the_cache_must_be_this_users(written: Path, tmp_path: Path) -> None:
    from kernelforge.errors import EnvironmentMissing
    from kernelforge.package.reader import extract_binary

    binary = read_package(written).entries[0].binary
    cache = tmp_path / "cache"
    (cache / "elsewhere").mkdir(parents=True)
    (cache / "packages").symlink_to("elsewhere")
    with pytest.raises(EnvironmentMissing, match="not a folder of this user"):
        extract_binary(binary, cache)


def test_reading_imports_neither_torch_nor_the_stages_that_make_packages() -> None:
    code = (
        "import sys, kernelforge.package.reader\n"
        "stages = 'generate build verify benchmark audit evaluate search store executors runner dispatch'.split()\n"
        "print([m for m in ['torch', *(f'kernelforge.{s}' for s in stages)] if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
