"""From the files of a package to its content, for every version that is read. No disk, no ZIP, nothing is executed.

The order matters: checksums and signature are of raw bytes, and nothing is parsed before they hold.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from kernelforge.cards.guard import Guard
from kernelforge.cards.types import Variant
from kernelforge.digest import Json, digest_bytes
from kernelforge.errors import PackageError
from kernelforge.package.layout import (
    CHECKSUMS,
    HEADER,
    MANIFEST,
    SEALS,
    SIGNATURE,
    SIGNED_PREFIX,
    SOURCE_NAMES,
    binary_name,
    checksum_lines,
    folder_of,
    in_order,
    parse_signature,
    text_names,
    unchecked_of,
)
from kernelforge.package.signing import fingerprint, verify_signature
from kernelforge.package.strict_json import (
    json_bytes,
    object_of,
    objects_of,
    only,
    parse_object,
    text_of,
    texts_of,
    whole_number_of,
)
from kernelforge.package.types import (
    FORMAT,
    FORMAT_VERSION,
    UNSIGNED_VERSION,
    Binary,
    Decision,
    Entry,
    Header,
    Off,
    Package,
    Tools,
    Use,
)

MAX_ALL_JSON_BYTES = 64 << 20
_UPDATE = "update kernelforge"
_HEADER_KEYS = (
    "format", "format_version", "name", "device", "device_name", "driver", "torch", "created_by", "unchecked",
)  # fmt: skip
_RECORD_KEYS = ("folder", "variant", "decisions", "provenance", "share", "backend", "binaries")
_BINARY_KEYS = ("target", "sha256", "refusals", "abi", "abi_version", "tools")


def parse_package(files: Mapping[str, bytes], *, path: Path, digest: str) -> Package:
    """A package, if each of its bytes is accounted for.

    Args:
        files: in their order in the ZIP. path, digest: of the whole file.

    Raises:
        PackageError: names the file that is missing, unlisted, edited, not signed as it says, or of a newer version.
    """
    for name in (MANIFEST, CHECKSUMS):
        if name not in files:
            raise PackageError(f"{name} is missing")
    if sum(len(data) for name, data in files.items() if name.endswith(".json")) > MAX_ALL_JSON_BYTES:
        raise PackageError(f"the JSON files together are longer than {MAX_ALL_JSON_BYTES} bytes")
    signer = _check_signature(files) if SIGNATURE in files else ""
    digests = {name: digest_bytes(data) for name, data in files.items() if name != CHECKSUMS}
    _check_checksums(files[CHECKSUMS], digests)
    header = _parse_header(files[HEADER], signed=bool(signer))
    if not signer:
        return Package(header=header, entries=_entries_unsigned(files, digests), path=path, digest=digest)
    entries = _entries(files, digests)
    if list(files) != in_order(files):
        raise PackageError("the files are not in the order in which they must be")
    if header.unchecked != unchecked_of(entries):
        raise PackageError(f"{HEADER}: 'unchecked' names others than the entries do")
    return Package(header=header, entries=entries, path=path, digest=digest, signer=signer)


def _check_signature(files: Mapping[str, bytes]) -> str:
    key, signature = parse_signature(files[SIGNATURE])
    if not verify_signature(key, signature, SIGNED_PREFIX + files[MANIFEST]):
        raise PackageError(f"{SIGNATURE} is not that of {MANIFEST} by the key {fingerprint(key)}")
    return key


def _check_checksums(text: bytes, digests: Mapping[str, str]) -> None:
    """The checksum file must be, to the byte, what the files give."""
    want = checksum_lines(digests)
    if text == want:
        return
    given = set(text.decode(errors="replace").splitlines())
    wrong = [line.split("  ", 1)[1] for line in want.decode().splitlines() if line not in given]
    raise PackageError(f"{wrong[0] if wrong else CHECKSUMS}: sha256 differs from {CHECKSUMS}, or is not in it")


def _parse_header(data: bytes, *, signed: bool) -> Header:
    raw = parse_object(data, HEADER)
    version = raw.get("format_version")
    if raw.get("format") != FORMAT or not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise PackageError(f"{HEADER} does not describe a {FORMAT} package")
    if version > FORMAT_VERSION:
        raise PackageError(
            f"{HEADER}: format version {version} is newer than {FORMAT_VERSION}, the newest that this version reads",
            hint=_UPDATE,
        )
    if signed != (version > UNSIGNED_VERSION):
        raise PackageError(
            f"{HEADER}: a package of format version {version} {'has no' if signed else 'must have a'} {SIGNATURE}"
        )
    if signed:
        only(raw, _HEADER_KEYS, HEADER)
    return Header(
        name=text_of(raw, "name", HEADER), device=text_of(raw, "device", HEADER), torch=text_of(raw, "torch", HEADER),
        created_by=text_of(raw, "created_by", HEADER), device_name=text_of(raw, "device_name", HEADER),
        # Older headers know no driver.
        driver=text_of(raw, "driver", HEADER) if signed else "",
        # Headers from before memory was checked have no such list.
        unchecked=texts_of(raw, "unchecked", HEADER) if "unchecked" in raw else (), format_version=version,
    )  # fmt: skip


def _entries(files: Mapping[str, bytes], digests: Mapping[str, str]) -> tuple[Entry, ...]:
    """The entries of a package of version 2."""
    manifest = _manifest(files, digests)
    only(manifest, ("format", "format_version", "files", "entries"), MANIFEST)
    version = whole_number_of(manifest, "format_version", MANIFEST)
    if (manifest["format"], version) != (FORMAT, FORMAT_VERSION):
        raise PackageError(f"{MANIFEST} is not of the same format as {HEADER}")
    return _all_entries(manifest, files, digests, _parse_entry)


def _entries_unsigned(files: Mapping[str, bytes], digests: Mapping[str, str]) -> tuple[Entry, ...]:
    """The entries of a package of version 1."""
    return _all_entries(_manifest(files, digests), files, digests, _parse_unsigned_entry)


_ParseEntry = Callable[[Mapping[str, Json], "_Folder"], Entry]


def _all_entries(
    manifest: Mapping[str, Json], files: Mapping[str, bytes], digests: Mapping[str, str], parse: _ParseEntry
) -> tuple[Entry, ...]:
    used, entries = {HEADER, *SEALS}, []
    for record in objects_of(manifest, "entries", MANIFEST):
        folder = _Folder(text_of(record, "folder", MANIFEST), files, digests, used)
        entries.append(parse(record, folder))
    for name in sorted(set(files) - used):
        raise PackageError(f"{name} belongs to no entry of {MANIFEST}")
    if len({e.variant.id for e in entries}) != len(entries):
        raise PackageError(f"{MANIFEST}: two entries for one variant")
    return tuple(entries)


class _Folder:
    """The files of one entry; remembers which were asked for."""

    def __init__(self, name: str, files: Mapping[str, bytes], digests: Mapping[str, str], used: set[str]) -> None:
        self.name, self._files, self._digests, self._used = name, files, digests, used

    def read(self, name: str) -> bytes:
        full = f"{self.name}/{name}"
        if full not in self._files:
            raise PackageError(f"{full} is not in the file")
        self._used.add(full)
        return self._files[full]

    def binary(self, raw: Mapping[str, Json], name: str) -> bytes:
        """A binary, if it is the one of which `raw` has the sha256."""
        data = self.read(name)
        if self._digests[f"{self.name}/{name}"] != raw.get("sha256"):
            raise PackageError(f"{self.name}/{name} is not the binary that {MANIFEST} names")
        return data

    def text(self, name: str) -> str:
        try:
            return self.read(name).decode("utf-8")
        except UnicodeDecodeError as error:
            raise PackageError(f"{self.name}/{name} is not UTF-8") from error

    def json(self, name: str) -> Mapping[str, Json]:
        return parse_object(self.read(name), f"{self.name}/{name}")

    def variant(self, record: Mapping[str, Json], *, exact: bool) -> Variant:
        """The variant, if it is the one that the manifest names. exact: its text must be the one that we write."""
        name = f"{self.name}/variant.json"
        raw = self.json("variant.json")
        try:
            variant = Variant.from_json(raw)
            Guard.of(variant)
            variant.describe()
            text = json_bytes(variant.to_json())
        except (KeyError, IndexError, ValueError, TypeError, AssertionError, AttributeError, ArithmeticError,
                RecursionError) as error:  # fmt: skip
            raise PackageError(f"{name} does not describe a variant: {error!r}") from error
        if self.name != folder_of(variant) or variant.id != record.get("variant"):
            raise PackageError(f"{name} is not the variant that {MANIFEST} names")
        if exact and text != self.read("variant.json"):
            raise PackageError(f"{name} says more than a variant does, or says it otherwise")
        return variant


def _manifest(files: Mapping[str, bytes], digests: Mapping[str, str]) -> Mapping[str, Json]:
    """The manifest; every other file must be listed in it with its size and sha256."""
    manifest = parse_object(files[MANIFEST], MANIFEST)
    listed = object_of(manifest, "files", MANIFEST)
    present = set(files) - SEALS
    for name in sorted(set(listed) ^ present):
        raise PackageError(f"{name} is {'not in the file' if name in listed else 'not listed in ' + MANIFEST}")
    for name in sorted(present):
        row = listed[name]
        same = row == {"size": len(files[name]), "sha256": digests[name]}
        if not same or not isinstance(row, Mapping) or type(row["size"]) is not int:
            raise PackageError(f"{name}: size or sha256 differs from {MANIFEST}")
    return manifest


def _parse_entry(record: Mapping[str, Json], folder: _Folder) -> Entry:
    only(record, _RECORD_KEYS, f"{MANIFEST}: {folder.name}")
    variant = folder.variant(record, exact=True)
    backend = text_of(record, "backend", MANIFEST)
    for name in text_names(backend):
        folder.read(name)
    binaries = tuple(_parse_binary(b, backend, folder) for b in objects_of(record, "binaries", MANIFEST))
    if not binaries or len({b.target.casefold() for b in binaries}) != len(binaries):
        raise PackageError(f"{MANIFEST}: {folder.name} has no binary, or two for one target")
    return _entry(record, folder, variant, binaries)


def _parse_binary(raw: Mapping[str, Json], backend: str, folder: _Folder) -> Binary:
    where = f"{MANIFEST}: a binary of {folder.name}"
    only(raw, _BINARY_KEYS, where)
    tools = object_of(raw, "tools", where)
    only(tools, ("compiler", "flags", "tvm_ffi", "glibc"), where)
    target = text_of(raw, "target", where)
    return Binary(
        data=folder.binary(raw, binary_name(target)), digest=text_of(raw, "sha256", where), backend=backend,
        target=target, refusals=texts_of(raw, "refusals", where), abi=text_of(raw, "abi", where),
        abi_version=whole_number_of(raw, "abi_version", where),
        tools=Tools(
            compiler=text_of(tools, "compiler", where), flags=texts_of(tools, "flags", where),
            tvm_ffi=text_of(tools, "tvm_ffi", where), glibc=text_of(tools, "glibc", where),
        ),
    )  # fmt: skip


def _parse_unsigned_entry(record: Mapping[str, Json], folder: _Folder) -> Entry:
    variant = folder.variant(record, exact=False)
    raw = object_of(record, "binary", MANIFEST)
    backend = text_of(raw, "backend", MANIFEST)
    text_names(backend)  # refuses an unknown one
    binary = Binary(
        data=folder.binary(raw, "kernel.so"), digest=text_of(raw, "sha256", MANIFEST), backend=backend,
        target=text_of(raw, "target", MANIFEST), refusals=texts_of(raw, "refusals", MANIFEST),
    )  # fmt: skip
    return _entry(record, folder, variant, (binary,))


def _entry(record: Mapping[str, Json], folder: _Folder, variant: Variant, binaries: Sequence[Binary]) -> Entry:
    decisions = object_of(record, "decisions", MANIFEST)
    return Entry(
        variant=variant, source=folder.text(SOURCE_NAMES[binaries[0].backend]), prelude=folder.text("prelude.h"),
        binaries=tuple(binaries), verdict=folder.json("verdict.json"), measurement=folder.json("measurement.json"),
        audit=folder.json("audit.json"),
        decisions={mode: _parse_decision(d) for mode, d in decisions.items()},
        provenance=object_of(record, "provenance", MANIFEST), share=_share(record, folder),
    )  # fmt: skip


def _share(record: Mapping[str, Json], folder: _Folder) -> float:
    share = record.get("share")
    if isinstance(share, bool) or not isinstance(share, int | float) or not 0.0 <= share <= 1.0:
        raise PackageError(f"{MANIFEST}: the share of {folder.name} is not within 0 and 1")
    return float(share)


def _parse_decision(value: Json) -> Decision:
    if not isinstance(value, Mapping) or not isinstance(value.get("use"), bool):
        raise PackageError(f"{MANIFEST}: a decision is neither use nor off")
    if value["use"]:
        only(value, ("use",), f"{MANIFEST}: a decision")
        return Use()
    only(value, ("use", "reason"), f"{MANIFEST}: a decision")
    return Off(reason=text_of(value, "reason", MANIFEST))
