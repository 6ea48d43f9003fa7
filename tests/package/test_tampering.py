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
from typing import Any

import pytest

from kernelforge.errors import NotFound, PackageError
from kernelforge.package.archive import pack as pack_as
from kernelforge.package.archive import unpack
from kernelforge.package.layout import CHECKSUMS, HEADER, MANIFEST, SEALS, SIGNATURE, checksums, seal, signature_bytes
from kernelforge.package.reader import read_package
from kernelforge.package.signing import Signer

Files = dict[str, bytes]
TEXTS = ("variant.json", "guard.txt", "kernel.cpp", "prelude.h", "verdict.json", "measurement.json", "audit.json")
ENTRY_FILES = (*TEXTS, "binaries/x86-64-v3/kernel.so")
STRANGER = Signer.of(bytes(32))


def pack(files: Mapping[str, bytes]) -> bytes:
    return pack_as(files, compress=False)


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


def sealed(files: Files, change: Callable[[dict[str, Any]], object] = lambda manifest: None) -> Files:
    """The files with manifest, signature and checksums made right again: an edit by someone who knows the format.

    Args:
        change: of the manifest, before it is signed by a key of theirs.
    """
    inner = {n: d for n, d in files.items() if n not in SEALS}
    records = json.loads(files[MANIFEST])["entries"]
    result = seal(inner, records, signer=STRANGER)
    manifest = json.loads(result[MANIFEST])
    change(manifest)
    return signed({**result, MANIFEST: json.dumps(manifest).encode()})


def signed(files: Files) -> Files:
    """The files with a stranger's signature of the manifest as it is, and right checksums."""
    result = {**files, SIGNATURE: signature_bytes(STRANGER, files[MANIFEST])}
    return {**result, CHECKSUMS: checksums(result)}


@pytest.mark.parametrize("name", [HEADER, MANIFEST, SIGNATURE, CHECKSUMS, *ENTRY_FILES])
def test_one_edited_byte(written: Path, name: str) -> None:
    files = files_of(written)
    full = next(n for n in files if n.endswith(name))
    data = bytearray(files[full])
    data[len(data) // 2] ^= 1
    refuse(written, pack({**files, full: bytes(data)}), full.replace(".", r"\.") if name != CHECKSUMS else "sha256")


def test_what_the_tests_below_begin_with_is_read(written: Path) -> None:
    edited = written.with_name("edited.cast")
    edited.write_bytes(pack(sealed(files_of(written))))
    assert (read_package(edited).entries, read_package(edited).signer) == (
        read_package(written).entries,
        STRANGER.public_key,
    )


@pytest.mark.parametrize("name", [MANIFEST, SIGNATURE, CHECKSUMS, *ENTRY_FILES])
def test_one_missing_file(written: Path, name: str) -> None:
    files = files_of(written)
    full = next(n for n in files if n.endswith(name))
    del files[full]
    refuse(written, pack(files), "missing|not in|differs|must have a SIGNATURE")
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
    newer = files[HEADER].replace(b'"format_version": 2', b'"format_version": 3')
    refuse(written, pack(sealed({**files, HEADER: newer})), "format version 3 is newer than 2")


def test_the_version_says_whether_there_is_a_signature(written: Path) -> None:
    files = files_of(written)
    older = files[HEADER].replace(b'"format_version": 2', b'"format_version": 1')
    refuse(written, pack(sealed({**files, HEADER: older})), "format version 1 has no SIGNATURE")
    del files[SIGNATURE]
    refuse(written, pack({**files, CHECKSUMS: checksums(files)}), "format version 2 must have a SIGNATURE")


@pytest.mark.parametrize("version", [b"0", b"true", b'"1"', b"null"])
def test_a_version_that_is_none(written: Path, version: bytes) -> None:
    files = files_of(written)
    wrong = files[HEADER].replace(b'"format_version": 2', b'"format_version": ' + version)
    refuse(written, pack(sealed({**files, HEADER: wrong})), "does not describe")


@pytest.mark.parametrize(
    "text",
    [
        b"", b"[]", b"{", b"\xff", b'{"a": NaN}', b'{"a": -Infinity}', b'{"a": 1e999}', b'{"a": 1, "a": 1}',
        b"[" * 100_000, b'{"a": ' + b"[" * 40 + b"]" * 40 + b"}", b'{"a": ' + b"9" * 5000 + b"}",
        b'{"a": "\\ud800"}', b'{"a": "' + bytes([0xED, 0xA0, 0x80]) + b'"}', b"{} ,",
        b'{"a": 18446744073709551616}', b"\xef\xbb\xbf{}", b"{}" + b" " * (8 << 20),
    ],
)  # fmt: skip
def test_json_that_is_none(written: Path, text: bytes) -> None:
    files = files_of(written)
    name = next(n for n in files if n.endswith("measurement.json"))
    refuse(written, pack(sealed({**files, name: text})), r"measurement.json is (not|nested|longer)")


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

    def deflate(info: zipfile.ZipInfo) -> None:
        info.compress_type = zipfile.ZIP_DEFLATED

    refuse(written, zip_of(files, extra), "extra fields")
    refuse(written, zip_of(files, compression), "unusual compression")
    refuse(written, zip_of(files, deflate), "is compressed")


def test_the_container_has_one_form_only(written: Path) -> None:
    """Nothing about it is open: a file that differs in any byte is another package, or none."""
    files = files_of(written)
    names = list(files)
    refuse(written, pack({n: files[n] for n in [*names[:4], *names[:3:-1]]}), "not in the order")
    refuse(written, pack({n: files[n] for n in [HEADER, SIGNATURE, MANIFEST, *names[3:]]}), "not in the order")

    def dated(info: zipfile.ZipInfo) -> None:
        info.date_time = (2020, 1, 1, 0, 0, 0)

    refuse(written, zip_of(files, dated), "the one way")


def test_a_stranger_with_the_format_at_hand(written: Path) -> None:
    """Everything in the manifest is checked against everything else, whoever signed it."""
    files = files_of(written)
    changes: dict[str, Callable[[dict[str, Any]], object]] = {
        "'more' is unknown": lambda m: m.update(more=1),
        "'entries' is missing": lambda m: m.pop("entries"),
        "'entries' is no list": lambda m: m.update(entries={}),
        "not of the same format": lambda m: m.update(format_version=1),
        "'format_version' is missing or not a whole number": lambda m: m.update(format_version=2.0),
        "size or sha256 differs": lambda m: m["files"][HEADER].update(size=float(len(files[HEADER]))),
        "folder.* is missing": lambda m: m["entries"][0].pop("folder"),
        "two entries for one variant": lambda m: m["entries"].append(m["entries"][0]),
        "belongs to no entry": lambda m: m["entries"].pop(),
        "unknown backend 'rust'": lambda m: m["entries"][0].update(backend="rust"),
        "has no binary": lambda m: m["entries"][0].update(binaries=[]),
        "two for one target": lambda m: m["entries"][0]["binaries"].append(m["entries"][0]["binaries"][0]),
        "cannot be the name of a folder": lambda m: m["entries"][0]["binaries"][0].update(target=".."),
        "'abi_version' is missing or not": lambda m: m["entries"][0]["binaries"][0].update(abi_version=-1),
        "is not the binary": lambda m: m["entries"][0]["binaries"][0].update(sha256="0" * 64),
        "a decision is neither": lambda m: m["entries"][0]["decisions"].update(eager=True),
        "'reason' is missing": lambda m: m["entries"][0].update(decisions={"eager": {"use": False}}),
        "share": lambda m: m["entries"][0].update(share=10**18),
        "not within 0 and 1": lambda m: m["entries"][0].update(share=True),
        "'provenance' is missing": lambda m: m["entries"][0].update(provenance=[]),
    }
    for match, change in changes.items():
        refuse(written, pack(sealed(files, change)), match)


def test_a_header_that_names_others_as_unchecked(written: Path) -> None:
    files = files_of(written)
    head = json.loads(files[HEADER])
    refuse(written, pack(sealed({**files, HEADER: json.dumps({**head, "unchecked": ["x"]}).encode()})), "unchecked")
    refuse(written, pack(sealed({**files, HEADER: json.dumps({**head, "x": 1}).encode()})), "'x' is unknown")


@pytest.mark.parametrize("text", [b"", b"kernelforge.cast signature, ed25519\n", b"x" * 100_000, b"\xff" * 200])
def test_a_signature_that_is_none(written: Path, text: bytes) -> None:
    files = {**files_of(written), SIGNATURE: text}
    refuse(written, pack({**files, CHECKSUMS: checksums(files)}), "SIGNATURE is not a signature")


def test_a_signature_by_another_key_than_it_says(written: Path) -> None:
    files = files_of(written)
    key = read_package(written).signer.encode()
    for text in [files[SIGNATURE].replace(key, STRANGER.public_key.encode()), files[SIGNATURE].replace(key, b"f" * 64)]:
        edited = {**files, SIGNATURE: text}
        refuse(written, pack({**edited, CHECKSUMS: checksums(edited)}), "SIGNATURE is not that of manifest.json")


def test_nothing_is_parsed_before_the_signature_was_verified(written: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = files_of(written)
    files[MANIFEST] += b" "
    files[CHECKSUMS] = checksums(files)
    monkeypatch.setattr(json, "loads", lambda *args, **kwargs: pytest.fail("parsed"))
    refuse(written, pack(files), "SIGNATURE is not that of manifest.json")


def test_missing_and_unreadable(tmp_path: Path) -> None:
    with pytest.raises(NotFound):
        read_package(tmp_path / "none.cast")
    with pytest.raises(PackageError, match="is a folder, not a package"):
        read_package(tmp_path)


def test_any_single_byte_of_the_file_matters(written: Path) -> None:
    data = written.read_bytes()
    edited = written.with_name("edited.cast")
    for position in range(0, len(data), 61):
        changed = bytearray(data)
        changed[position] ^= 0x10
        edited.write_bytes(bytes(changed))
        with pytest.raises(PackageError):
            read_package(edited)


def test_reading_imports_neither_torch_nor_the_stages_that_make_packages() -> None:
    code = (
        "import sys, kernelforge.package.reader\n"
        "stages = 'generate build verify benchmark audit evaluate search store executors runner dispatch'.split()\n"
        "print([m for m in ['torch', *(f'kernelforge.{s}' for s in stages)] if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
