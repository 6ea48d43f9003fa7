"""Which files a package consists of, and what is in each. Pure: content to bytes and back, no disk, no ZIP.

HEADER.json         first: format, version, model, device, whose memory is unchecked
manifest.json       every other file with size and sha256, and one record per entry
checksums.sha256    `sha256sum` lines of every file but itself
variants/<operator>-<id>/{variant.json, kernel.cpp|cu, prelude.h, kernel.so, verdict.json, measurement.json,
                          audit.json}
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace

from kernelforge.cards.types import Variant
from kernelforge.digest import Json, digest_bytes
from kernelforge.errors import PackageError
from kernelforge.package.types import FORMAT, FORMAT_VERSION, Binary, Decision, Entry, Header, Off, Use

HEADER = "HEADER.json"
MANIFEST = "manifest.json"
CHECKSUMS = "checksums.sha256"
_SOURCE_NAMES = {"cpp": "kernel.cpp", "cuda": "kernel.cu"}


def render(header: Header, entries: Sequence[Entry]) -> dict[str, bytes]:
    """All files of a package in their order in the ZIP. The same content gives the same bytes.

    Raises:
        PackageError: two entries are for the same variant, or a backend is unknown.
    """
    files: dict[str, bytes] = {}
    records: list[Json] = []
    ordered = sorted(entries, key=lambda e: (e.variant.operator, e.variant.id))
    header = replace(header, unchecked=unchecked_of(ordered))
    for entry in ordered:
        folder = folder_of(entry.variant)
        if any(name.startswith(folder + "/") for name in files):
            raise PackageError(f"two kernels for the variant {entry.variant.label}", hint="export one per variant")
        files |= _entry_files(entry, folder)
        records.append(_record(entry, folder))
    head = {HEADER: _json_bytes(_header_json(header))}
    listed = {**head, **dict(sorted(files.items()))}
    sizes: dict[str, Json] = {name: {"size": len(data), "sha256": digest_bytes(data)} for name, data in listed.items()}
    manifest = _json_bytes({"files": sizes, "entries": records})
    return {
        **head, MANIFEST: manifest, CHECKSUMS: checksums({**listed, MANIFEST: manifest}), **dict(sorted(files.items())),
    }  # fmt: skip


def unchecked_of(entries: Sequence[Entry]) -> tuple[str, ...]:
    """Labels of the variants whose kernels' memory could not be checked when they were exported."""
    return tuple(e.variant.label for e in entries if e.memory.get("state") == "unavailable")


def checksums(files: Mapping[str, bytes]) -> bytes:
    """`sha256sum` lines, sorted by name, for every given file but the checksums themselves."""
    lines = [f"{digest_bytes(data)}  {name}\n" for name, data in sorted(files.items()) if name != CHECKSUMS]
    return "".join(lines).encode()


def folder_of(variant: Variant) -> str:
    """The folder of a variant's files."""
    return f"variants/{variant.operator}-{variant.id[:16]}"


def parse_header(data: bytes) -> Header:
    """The header, for a version that this reader knows.

    Raises:
        PackageError: not a header of ours, or of a newer format version.
    """
    raw = parse_object(data, HEADER)
    version = raw.get("format_version")
    if raw.get("format") != FORMAT or not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise PackageError(f"{HEADER} does not describe a {FORMAT} package")
    if version > FORMAT_VERSION:
        raise PackageError(
            f"{HEADER}: format version {version} is newer than {FORMAT_VERSION}, the newest that this version reads",
            hint="update kernelforge",
        )
    return Header(
        name=_text(raw, "name", HEADER), device=_text(raw, "device", HEADER), torch=_text(raw, "torch", HEADER),
        created_by=_text(raw, "created_by", HEADER), device_name=_text(raw, "device_name", HEADER),
        unchecked=_labels(raw), format_version=version,
    )  # fmt: skip


def parse_entries(files: Mapping[str, bytes]) -> tuple[Entry, ...]:
    """The entries that the manifest records; every file must be listed there with its size and sha256, and belong.

    Raises:
        PackageError: names the file that is missing, unlisted, or not what the manifest says.
    """
    manifest = parse_object(files[MANIFEST], MANIFEST)
    listed = manifest.get("files")
    if not isinstance(listed, Mapping):
        raise PackageError(f"{MANIFEST} lists no files")
    present = set(files) - {MANIFEST, CHECKSUMS}
    for name in sorted(set(listed) ^ present):
        raise PackageError(f"{name} is {'not in the file' if name in listed else 'not listed in ' + MANIFEST}")
    for name in sorted(present):
        if listed[name] != {"size": len(files[name]), "sha256": digest_bytes(files[name])}:
            raise PackageError(f"{name}: size or sha256 differs from {MANIFEST}")
    records = manifest.get("entries")
    if not isinstance(records, Sequence) or isinstance(records, str):
        raise PackageError(f"{MANIFEST} records no entries")
    used = {HEADER}
    entries = []
    for record in records:
        if not isinstance(record, Mapping):
            raise PackageError(f"{MANIFEST}: an entry is not an object")
        entry = _parse_entry(record, files)
        entries.append(entry)
        used |= {f"{folder_of(entry.variant)}/{name}" for name in _names(entry.binary.backend)}
    for name in sorted(present - used):
        raise PackageError(f"{name} belongs to no entry of {MANIFEST}")
    if len({e.variant.id for e in entries}) != len(entries):
        raise PackageError(f"{MANIFEST}: two entries for one variant")
    return tuple(entries)


def parse_object(data: bytes, name: str) -> Mapping[str, Json]:
    """A JSON object.

    Raises:
        PackageError: not UTF-8, not JSON (NaN and infinities are not), or not an object.
    """
    try:
        value = json.loads(data.decode("utf-8"), parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise PackageError(f"{name} is not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise PackageError(f"{name} is not a JSON object")
    return value


def _no_constant(text: str) -> float:
    raise ValueError(f"{text} is not JSON")


def _json_bytes(value: Json) -> bytes:
    return (json.dumps(value, sort_keys=True, indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode()


def _names(backend: str) -> tuple[str, ...]:
    if backend not in _SOURCE_NAMES:
        raise PackageError(f"unknown backend {backend!r}", hint=f"known: {', '.join(sorted(_SOURCE_NAMES))}")
    source = _SOURCE_NAMES[backend]
    return ("variant.json", source, "prelude.h", "kernel.so", "verdict.json", "measurement.json", "audit.json")


def _entry_files(entry: Entry, folder: str) -> dict[str, bytes]:
    contents = (
        _json_bytes(entry.variant.to_json()), entry.source.encode(), entry.prelude.encode(), entry.binary.data,
        _json_bytes(entry.verdict), _json_bytes(entry.measurement), _json_bytes(entry.audit),
    )  # fmt: skip
    names = _names(entry.binary.backend)
    return {f"{folder}/{name}": data for name, data in zip(names, contents, strict=True)}


def _header_json(header: Header) -> Json:
    return {
        "format": FORMAT, "format_version": header.format_version, "name": header.name, "device": header.device,
        "device_name": header.device_name, "torch": header.torch, "created_by": header.created_by,
        "unchecked": list(header.unchecked),
    }  # fmt: skip


def _record(entry: Entry, folder: str) -> Json:
    decisions: dict[str, Json] = {mode: _decision_json(d) for mode, d in sorted(entry.decisions.items())}
    binary = entry.binary
    return {
        "folder": folder, "variant": entry.variant.id, "decisions": decisions, "provenance": entry.provenance,
        "share": entry.share,
        "binary": {"sha256": binary.digest, "backend": binary.backend, "target": binary.target,
                   "refusals": list(binary.refusals)},
    }  # fmt: skip


def _decision_json(decision: Decision) -> Json:
    return {"use": True} if isinstance(decision, Use) else {"use": False, "reason": decision.reason}


def _parse_decision(value: Json) -> Decision:
    if not isinstance(value, Mapping) or not isinstance(value.get("use"), bool):
        raise PackageError(f"{MANIFEST}: a decision is neither use nor off")
    return Use() if value["use"] else Off(reason=_text(value, "reason", MANIFEST))


def _parse_entry(record: Mapping[str, Json], files: Mapping[str, bytes]) -> Entry:
    folder = _text(record, "folder", MANIFEST)
    binary, share = _mapping(record, "binary"), record.get("share")
    backend = _text(binary, "backend", MANIFEST)
    contents = {}
    for name in _names(backend):
        if f"{folder}/{name}" not in files:
            raise PackageError(f"{folder}/{name} is not in the file")
        contents[name] = files[f"{folder}/{name}"]
    variant = _parse_variant(contents["variant.json"], f"{folder}/variant.json")
    if folder != folder_of(variant) or variant.id != record.get("variant"):
        raise PackageError(f"{folder}/variant.json is not the variant that {MANIFEST} names")
    if digest_bytes(contents["kernel.so"]) != binary.get("sha256"):
        raise PackageError(f"{folder}/kernel.so is not the binary that {MANIFEST} names")
    refusals = binary.get("refusals")
    if not isinstance(refusals, Sequence) or not isinstance(share, int | float):
        raise PackageError(f"{MANIFEST}: the entry {folder} is not complete")
    return Entry(
        variant=variant, source=_decode(contents[_SOURCE_NAMES[backend]], folder),
        prelude=_decode(contents["prelude.h"], folder),
        binary=Binary(data=contents["kernel.so"], digest=_text(binary, "sha256", MANIFEST), backend=backend,
                      target=_text(binary, "target", MANIFEST), refusals=tuple(str(r) for r in refusals)),
        verdict=parse_object(contents["verdict.json"], f"{folder}/verdict.json"),
        measurement=parse_object(contents["measurement.json"], f"{folder}/measurement.json"),
        audit=parse_object(contents["audit.json"], f"{folder}/audit.json"),
        decisions={mode: _parse_decision(d) for mode, d in _mapping(record, "decisions").items()},
        provenance=_mapping(record, "provenance"), share=float(share),
    )  # fmt: skip


def _parse_variant(data: bytes, name: str) -> Variant:
    try:
        return Variant.from_json(parse_object(data, name))
    except (KeyError, IndexError, ValueError, TypeError, AssertionError, RecursionError) as error:
        raise PackageError(f"{name} does not describe a variant: {error!r}") from error


def _decode(data: bytes, folder: str) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise PackageError(f"{folder}: a source is not UTF-8") from error


def _text(raw: Mapping[str, Json], key: str, name: str) -> str:
    value = raw.get(key)
    if not isinstance(value, str):
        raise PackageError(f"{name}: {key!r} is missing or not text")
    return value


def _labels(raw: Mapping[str, Json]) -> tuple[str, ...]:
    value = raw.get("unchecked", [])  # headers from before there was such a check have none
    if not isinstance(value, list) or not all(isinstance(label, str) for label in value):
        raise PackageError(f"{HEADER}: 'unchecked' is no list of labels")
    return tuple(str(label) for label in value)


def _mapping(raw: Mapping[str, Json], key: str) -> Mapping[str, Json]:
    value = raw.get(key)
    if not isinstance(value, Mapping):
        raise PackageError(f"{MANIFEST}: {key!r} is missing or not an object")
    return value
