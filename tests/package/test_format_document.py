"""docs/cast-format.md and docs/cast.schema.json say what the code does: fields, files, limits, and what is refused."""

from __future__ import annotations

import importlib
import json
import re
import stat
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import pytest

from kernelforge.digest import digest_bytes
from kernelforge.errors import PackageError
from kernelforge.evaluate.types import Certified, MemoryPassed, MemoryUnavailable, Scored
from kernelforge.package import archive
from kernelforge.package.archive import pack, unpack
from kernelforge.package.layout import CHECKSUMS, HEADER, MANIFEST, SEALS, SIGNATURE, checksums, seal, signature_bytes
from kernelforge.package.reader import read_package
from kernelforge.package.serial import accepted_to_json
from kernelforge.package.signing import Signer
from kernelforge.package.types import Entry, Header
from kernelforge.package.writer import write_package

DOCS = Path(__file__).parents[2] / "docs"
TEXT = (DOCS / "cast-format.md").read_text()
SCHEMA = json.loads((DOCS / "cast.schema.json").read_text())
STRANGER = Signer.of(bytes(32))
Files = dict[str, bytes]


def table(title: str) -> list[list[str]]:
    """The rows of the first table under a heading, without its head."""
    section = re.split(r"^#+ ", TEXT.split(f"# {title}\n", 1)[1], maxsplit=1, flags=re.M)[0]
    rows = [line.strip("|").split("|") for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in row] for row in rows[2:]]


def files_of(path: Path) -> Files:
    return unpack(path.read_bytes(), first=HEADER)


@pytest.mark.parametrize(
    ("title", "definition"),
    [("HEADER.json", "header"), ("manifest.json", "manifest"), ("A record of `entries`", "entry"),
     ("A binary of a record", "binary")],
)  # fmt: skip
def test_the_document_names_the_fields_of_the_schema(title: str, definition: str) -> None:
    types = {"text": "string", "texts": "array", "object": "object", "objects": "array", "number": "number"}
    rows = {row[0].strip("`"): row[1] for row in table(title)}
    fields = SCHEMA["$defs"][definition]
    assert set(rows) == set(fields["properties"]) == set(fields["required"])
    assert fields["additionalProperties"] is False
    for name, kind in rows.items():
        told = fields["properties"][name]
        if "type" in told:
            assert told["type"] == types.get(kind, kind), name


def test_the_document_names_the_tools() -> None:
    rows = {row[0].strip("`") for row in table("The tools of a binary")}
    assert rows == set(SCHEMA["$defs"]["binary"]["properties"]["tools"]["properties"])


def test_the_document_names_the_files_in_their_order(written: Path) -> None:
    tables = [re.findall(r"^\| [1-5] \| `(.+?)`", TEXT, flags=re.M)]
    assert tables[0][:4] == list(files_of(written))[:4]
    folder = TEXT.split("The folder of an entry", 1)[1].split("\n\n", 2)[1]
    told = set(re.findall(r"`([^`]+)`", "".join(line.split("|")[1] for line in folder.splitlines())))
    inside = {name.split("/", 2)[2] for name in files_of(written) if name.startswith("variants/")}
    inside = {re.sub(r"binaries/[^/]+", "binaries/TARGET", name) for name in inside}
    assert told == inside | {"kernel.cu"}


def test_the_document_names_the_limits() -> None:
    for _, value, constant in table("Limits"):
        module, name = constant.strip("`").split(".")
        assert getattr(importlib.import_module(f"kernelforge.package.{module}"), name) == int(value.split()[0]), name


def test_the_signature_is_what_the_document_says(written: Path) -> None:
    files = files_of(written)
    lines = files[SIGNATURE].decode("ascii").split("\n")
    shown = TEXT.split("```text\n", 1)[1].split("```", 1)[0].splitlines()
    assert [line.split(" ")[0] for line in lines[:3]] == [line.split(" ")[0] for line in shown]
    assert lines[0] == shown[0] and lines[3:] == [""]
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    key, signature = bytes.fromhex(lines[1].split(" ")[1]), bytes.fromhex(lines[2].split(" ")[1])
    Ed25519PublicKey.from_public_bytes(key).verify(signature, b"kernelforge.cast manifest\0" + files[MANIFEST])


def test_what_is_written_satisfies_the_schema(
    tmp_path: Path, header: Header, entry_of: Callable[[str], Entry], scored: Scored
) -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    validator = jsonschema.Draft202012Validator(SCHEMA)
    v, entry = scored.verdict, entry_of("exp")
    memories: tuple[MemoryPassed | MemoryUnavailable, ...] = (
        MemoryPassed(tools=("AddressSanitizer",)),
        MemoryUnavailable(reason="no tool"),
    )
    entries = [
        replace(
            entry_of(operator),
            verdict=accepted_to_json(Certified(cases=v.cases, worst=v.worst, bitwise=v.bitwise, memory=memory)),
            measurement={**entry.measurement, "modes": {"eager": {"speedup": None}, "another": {}}},
        )
        for operator, memory in zip(("exp", "relu"), memories, strict=True)
    ]
    write_package(tmp_path / "a.cast", [*entries, entry_of("log")], header=header)
    files = files_of(tmp_path / "a.cast")
    document = {name: json.loads(data) for name, data in files.items() if name.endswith(".json")}
    assert [error.message for error in validator.iter_errors(document)] == []
    assert len(document) == 2 + 3 * 4
    for name, value in document.items():  # and the schema is not one that takes everything
        broken = {**document, name: {**value, "unchecked": 7, "kind": 7, "verdict": 7, "speedup": 7}}
        assert not validator.is_valid(broken), name
        assert not validator.is_valid({**document, name: {}}), name


# One package for each row of "What a reader must refuse".


def sealed(files: Files) -> Files:
    inner = {name: data for name, data in files.items() if name not in SEALS}
    return seal(inner, json.loads(files[MANIFEST])["entries"], signer=STRANGER)


def signed(files: Files, manifest: bytes) -> Files:
    files = {**files, MANIFEST: manifest, SIGNATURE: signature_bytes(STRANGER, manifest)}
    return {**files, CHECKSUMS: checksums(files)}


def plain(files: Files) -> bytes:
    return pack(files, compress=False)


def with_json(name: str, change: Callable[[Any], object]) -> Callable[[Files], bytes]:
    """One JSON file of the content changed, all else made right by a stranger."""

    def make(files: Files) -> bytes:
        full = next(n for n in files if n.endswith(name))
        value = json.loads(files[full])
        change(value)
        data = json.dumps(value).encode()
        return plain(signed(files, data) if name == MANIFEST else sealed({**files, full: data}))

    return make


def with_text(old: bytes, new: bytes, name: str = "audit.json") -> Callable[[Files], bytes]:
    def make(files: Files) -> bytes:
        full = next(n for n in files if n.endswith(name))
        assert old in files[full]
        return plain(sealed({**files, full: files[full].replace(old, new, 1)}))

    return make


def with_infos(change: Callable[[zipfile.ZipInfo], None], comment: bytes = b"") -> Callable[[Files], bytes]:
    """The container written by somebody else's tool."""

    def make(files: Files) -> bytes:
        buffer = BytesIO()
        with zipfile.ZipFile(buffer, "w") as container:
            for name, data in files.items():
                info = zipfile.ZipInfo(name, date_time=(1980, 1, 1, 0, 0, 0))
                info.create_system, info.external_attr = 3, (stat.S_IFREG | 0o644) << 16
                if name == MANIFEST:
                    change(info)
                container.writestr(info, data)
            container.comment = comment
        return buffer.getvalue()

    return make


def patched(offset: int, value: int, *, central: bool = False) -> Callable[[Files], bytes]:
    """A byte of the second entry's local header, or of its central one, is another one."""

    def make(files: Files) -> bytes:
        data = bytearray(plain(files))
        with zipfile.ZipFile(BytesIO(bytes(data))) as container:
            at = container.infolist()[1].header_offset
            at = container.start_dir + 46 + len(HEADER) if central else at
        data[at + offset] ^= value
        return bytes(data)

    return make


def both(offset: int, value: int, central: int) -> Callable[[Files], bytes]:
    """The same change in both descriptions of the second entry."""

    def make(files: Files) -> bytes:
        one, two = bytearray(plain(files)), patched(offset, value)(files)
        with zipfile.ZipFile(BytesIO(bytes(one))) as container:
            at = container.start_dir + 46 + len(HEADER) + central
        data = bytearray(two)
        data[at] ^= value
        return bytes(data)

    return make


def added(name: str, data: bytes = b"x") -> Callable[[Files], bytes]:
    return lambda files: plain({**files, name: data})


def unlisted(files: Files) -> bytes:
    files = {**files, "variants/extra.so": b"x"}
    return plain({**files, CHECKSUMS: checksums(files)})


def attributes(mode: int) -> Callable[[zipfile.ZipInfo], None]:
    def change(info: zipfile.ZipInfo) -> None:
        info.external_attr = mode << 16

    return change


def extra(info: zipfile.ZipInfo) -> None:
    info.extra = b"\x99\x99\0\0"


def deflated(info: zipfile.ZipInfo) -> None:
    info.compress_type = zipfile.ZIP_DEFLATED


def twice(files: Files) -> bytes:
    buffer = BytesIO(plain(files))
    with zipfile.ZipFile(buffer, "a") as container, pytest.warns(UserWarning, match="Duplicate name"):
        info = zipfile.ZipInfo(MANIFEST, date_time=(1980, 1, 1, 0, 0, 0))
        info.create_system, info.external_attr = 3, (stat.S_IFREG | 0o644) << 16
        container.writestr(info, b"{}")
    return buffer.getvalue()


def reordered(files: Files) -> bytes:
    names = list(files)
    return plain({name: files[name] for name in [*names[:4], *reversed(names[4:])]})


def without(*names: str) -> Callable[[Files], bytes]:
    def make(files: Files) -> bytes:
        left = {n: d for n, d in files.items() if not any(n.endswith(name) for name in names)}
        return plain({**left, CHECKSUMS: checksums(left)})

    return make


def gap(files: Files) -> bytes:
    data = plain(files)
    with zipfile.ZipFile(BytesIO(data)) as container:
        at = container.infolist()[1].header_offset
    return data[:at] + b"gap" + data[at:]


def first_variant(manifest: Any) -> None:
    manifest["entries"][0]["variant"] = manifest["entries"][1]["variant"]


REFUSED: Mapping[str, tuple[str, Callable[[Files], bytes]]] = {
    "another first entry": ("is not the first entry", lambda f: plain({**{k: f[k] for k in [MANIFEST, HEADER]}, **f})),
    "unlisted file": ("not listed in manifest", unlisted),
    "missing file": ("is not in the file", without("audit.json")),
    "name twice": ("there twice", twice),
    "names that differ in case": ("there twice", added("Manifest.json")),
    "absolute name": ("absolute", added("/etc/evil")),
    "name with `..`": ("leaves the package", added("variants/../../evil")),
    "name with a backslash": ("unusual characters", added("a\\b")),
    "symbolic link": ("not a plain file", with_infos(attributes(stat.S_IFLNK | 0o777))),
    "encrypted entry": ("encrypted", both(6, 1, 8)),
    "compressed entry": ("compressed", with_infos(deflated)),
    "entry too large": ("larger than", patched(27, 0x40, central=True)),
    "other local header": ("disagree", patched(14, 1)),
    "bytes between the entries": ("does not follow", gap),
    "bytes after the end": ("bytes before or after", lambda f: plain(f) + b"tail"),
    "extra field": ("extra fields", with_infos(extra)),
    "archive comment": ("belong to no entry", with_infos(lambda info: None, b"hello")),
    "other order": ("not in the order", reordered),
    "wrong size or hash": ("size or sha256 differs", with_json(MANIFEST, lambda m: m["files"][HEADER].update(size=1))),
    "wrong checksum": (
        "sha256 differs from checksums",
        lambda f: plain({**f, CHECKSUMS: f[CHECKSUMS].replace(b"a", b"b", 1)}),
    ),
    "wrong signature": (
        "is not that of manifest",
        lambda f: plain(signed(f, f[MANIFEST] + b" ") | {MANIFEST: f[MANIFEST]}),
    ),
    "no signature": ("must have a SIGNATURE", without(SIGNATURE)),
    "signature of another version": ("has no SIGNATURE", with_json(HEADER, lambda h: h.update(format_version=1))),
    "newer version": ("newer than 2", with_json(HEADER, lambda h: h.update(format_version=3))),
    "unknown field": ("is unknown", with_json(HEADER, lambda h: h.update(more=""))),
    "missing field": ("is missing", with_json(MANIFEST, lambda m: m["entries"][0].pop("share"))),
    "key twice in an object": ("there twice", with_text(b'"kind"', b'"evidence": [], "kind"')),
    "NaN or infinity as a number": ("NaN is not JSON", with_text(b'"kind"', b'"x": NaN, "kind"')),
    "number beyond 64 bits": ("64 bits", with_text(b'"kind"', b'"x": 18446744073709551616, "kind"')),
    "nested too deep": ("nested deeper", with_text(b'"kind"', b'"x": ' + b"[" * 32 + b"]" * 32 + b', "kind"')),
    "variant that is another": ("not the variant", with_json(MANIFEST, first_variant)),
    "variant in other words": ("otherwise", with_json("variant.json", lambda v: None)),
    "two entries for one variant": ("two entries", with_json(MANIFEST, lambda m: m["entries"].append(m["entries"][0]))),
    "two binaries for one target": (
        "two for one target",
        with_json(MANIFEST, lambda m: m["entries"][0]["binaries"].append(m["entries"][0]["binaries"][0])),
    ),
    "hidden unchecked kernel": (
        "names others",
        with_json("verdict.json", lambda v: v.update(memory={"state": "unavailable"})),
    ),
}


def test_every_row_of_the_table_is_tried() -> None:
    assert [row[0] for row in table("What a reader must refuse")] == list(REFUSED)


@pytest.mark.parametrize("case", REFUSED)
def test_what_a_reader_must_refuse(written: Path, case: str) -> None:
    files = files_of(written)
    path = written.with_name("edited.cast")
    path.write_bytes(plain(sealed(files)))
    assert read_package(path).signer == STRANGER.public_key  # what all of these begin with is read
    match, make = REFUSED[case]
    path.write_bytes(make(files))
    with pytest.raises(PackageError, match=match):
        read_package(path)


@pytest.mark.parametrize("limit", ["MAX_FILE_BYTES", "MAX_ENTRY_BYTES", "MAX_TOTAL_BYTES", "MAX_ENTRIES"])
def test_what_is_over_a_limit_is_refused(written: Path, limit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, limit, 10)
    with pytest.raises(PackageError, match=r"larger|more than"):
        read_package(written)


def test_digest_is_of_the_whole_file(written: Path) -> None:
    assert read_package(written).digest == digest_bytes(written.read_bytes())
