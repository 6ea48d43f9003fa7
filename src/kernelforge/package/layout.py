"""Which files a package consists of, and what is in each: from content to bytes. No disk, no ZIP. docs/cast-format.md.

HEADER.json         first: format, version, model, device, whose memory is unchecked
manifest.json       every other file with size and sha256, and one record per entry
SIGNATURE           by whom the manifest is signed, and the signature
checksums.sha256    `sha256sum` lines of every file but itself
variants/<operator>-<id>/{variant.json, guard.txt, kernel.cpp|cu, prelude.h, verdict.json, measurement.json, audit.json,
                          binaries/<target>/kernel.so}

`package.parsing` is the way back, also from version 1.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from kernelforge.cards.types import Variant
from kernelforge.digest import Json, digest_bytes
from kernelforge.errors import PackageError
from kernelforge.package.signing import Signer
from kernelforge.package.strict_json import json_bytes
from kernelforge.package.types import FORMAT, FORMAT_VERSION, Binary, Decision, Entry, Header, Use

HEADER = "HEADER.json"
MANIFEST = "manifest.json"
SIGNATURE = "SIGNATURE"
CHECKSUMS = "checksums.sha256"
SEALS = frozenset({MANIFEST, SIGNATURE, CHECKSUMS})
"""The files that the manifest cannot list."""

SIGNED_PREFIX = b"kernelforge.cast manifest\0"
"""Stands before the manifest in what is signed: a signature for anything else is none for a package."""

SOURCE_NAMES = {"cpp": "kernel.cpp", "cuda": "kernel.cu"}
_SIGNATURE_HEAD = "kernelforge.cast signature, ed25519"
_SIGNATURE = re.compile(_SIGNATURE_HEAD + r"\nkey ([0-9a-f]{64})\nsig ([0-9a-f]{128})\n")
_TARGET = re.compile(r"[A-Za-z0-9_.+-]*[A-Za-z0-9_+-][A-Za-z0-9_.+-]*")


def render(header: Header, entries: Sequence[Entry], *, signer: Signer) -> dict[str, bytes]:
    """All files of a package in their order in the ZIP. The same content and signer give the same bytes.

    Raises:
        PackageError: two entries for one variant, two binaries for one target, or an unknown backend or target.
    """
    files: dict[str, bytes] = {}
    records: list[Json] = []
    ordered = sorted(entries, key=lambda e: (e.variant.operator, e.variant.id))
    for entry in ordered:
        folder = folder_of(entry.variant)
        if any(name.startswith(folder + "/") for name in files):
            raise PackageError(f"two kernels for the variant {entry.variant.label}", hint="export one per variant")
        files |= _entry_files(entry, folder)
        records.append(_record(entry, folder))
    head = json_bytes(_header_json(header, unchecked_of(ordered)))
    return seal({HEADER: head, **files}, records, signer=signer)


def seal(files: Mapping[str, bytes], records: Sequence[Json], *, signer: Signer) -> dict[str, bytes]:
    """Header and variants with manifest, signature and checksums, in the order of the ZIP."""
    sizes: dict[str, Json] = {n: {"size": len(d), "sha256": digest_bytes(d)} for n, d in files.items()}
    manifest = json_bytes({
        "format": FORMAT, "format_version": FORMAT_VERSION, "files": sizes, "entries": list(records),
    })  # fmt: skip
    signed = {**files, MANIFEST: manifest, SIGNATURE: signature_bytes(signer, manifest)}
    signed[CHECKSUMS] = checksums(signed)
    return {name: signed[name] for name in in_order(signed)}


def in_order(names: Mapping[str, bytes]) -> list[str]:
    """The names of a package's files in the only order in which they may be in the ZIP."""
    head = [HEADER, MANIFEST, SIGNATURE, CHECKSUMS]
    return [*head, *sorted(set(names) - set(head))]


def signature_bytes(signer: Signer, manifest: bytes) -> bytes:
    """The file `SIGNATURE`: three lines of text, so that nothing need be parsed before it is verified."""
    signature = signer.sign(SIGNED_PREFIX + manifest)
    return f"{_SIGNATURE_HEAD}\nkey {signer.public_key}\nsig {signature.hex()}\n".encode()


def parse_signature(data: bytes) -> tuple[str, bytes]:
    """The public key and the signature.

    Raises:
        PackageError: not the text that `signature_bytes` writes.
    """
    found = _SIGNATURE.fullmatch(data[:1000].decode("ascii", errors="replace"))
    if found is None:
        raise PackageError(f"{SIGNATURE} is not a signature of a package")
    return found[1], bytes.fromhex(found[2])


def unchecked_of(entries: Sequence[Entry]) -> tuple[str, ...]:
    """Labels of the variants whose kernels' memory could not be checked when they were exported."""
    return tuple(e.variant.label for e in entries if e.memory.get("state") == "unavailable")


def checksums(files: Mapping[str, bytes]) -> bytes:
    """`sha256sum` lines, sorted by name, for every given file but the checksums themselves."""
    return checksum_lines({name: digest_bytes(data) for name, data in files.items() if name != CHECKSUMS})


def checksum_lines(digests: Mapping[str, str]) -> bytes:
    """`sha256sum` lines, sorted by name, of hex sha256 by name."""
    return "".join(f"{digest}  {name}\n" for name, digest in sorted(digests.items())).encode()


def folder_of(variant: Variant) -> str:
    """The folder of a variant's files."""
    return f"variants/{variant.operator}-{variant.id[:16]}"


def binary_name(target: str) -> str:
    """Where in its entry's folder a binary is.

    Raises:
        PackageError: no target can be called so.
    """
    if not _TARGET.fullmatch(target):
        raise PackageError(f"a binary is for {target!r}, which cannot be the name of a folder")
    return f"binaries/{target}/kernel.so"


def text_names(backend: str) -> tuple[str, ...]:
    """The other files of an entry's folder, in version 2.

    Raises:
        PackageError: an unknown backend.
    """
    if backend not in SOURCE_NAMES:
        raise PackageError(f"unknown backend {backend!r}", hint=f"known: {', '.join(sorted(SOURCE_NAMES))}")
    return (
        "variant.json", "guard.txt", SOURCE_NAMES[backend], "prelude.h", "verdict.json", "measurement.json",
        "audit.json",
    )  # fmt: skip


def guard_text(variant: Variant) -> str:
    """The guard for people. Nothing reads it: what admits a call derives from variant.json."""
    lines = [variant.describe()]
    lines += [f"{d.name} from {d.low} to {d.high}, a multiple of {d.multiple_of}" for d in variant.dims]
    lines += [f"{s.name} from {s.low} to {s.high}" for s in variant.scalars]
    lines += [f"{name} aligned to {pattern.alignment} bytes"
              for name, pattern in zip(variant.tensor_names(), variant.tensors, strict=True)]  # fmt: skip
    if variant.min_elements:
        lines.append(f"at least {variant.min_elements} elements")
    lines.append(f"at most {variant.max_elements} elements")
    lines.append(f"on {variant.device} {variant.capability}".rstrip())
    lines.append(f"autocast {variant.autocast or 'off'}, no gradients")
    lines.append(f"precision flags: {', '.join(variant.precision) or 'as torch has them by default'}")
    return "".join(f"{line}\n" for line in lines)


def _entry_files(entry: Entry, folder: str) -> dict[str, bytes]:
    if not entry.binaries or len({b.backend for b in entry.binaries}) != 1:
        raise PackageError(f"{entry.variant.label}: the binaries must be of one backend, and at least one")
    if len({b.target for b in entry.binaries}) != len(entry.binaries):
        raise PackageError(f"{entry.variant.label}: two binaries for one target")
    contents = (
        json_bytes(entry.variant.to_json()), guard_text(entry.variant).encode(), entry.source.encode(),
        entry.prelude.encode(), json_bytes(entry.verdict), json_bytes(entry.measurement), json_bytes(entry.audit),
    )  # fmt: skip
    files = dict(zip(text_names(entry.binary.backend), contents, strict=True))
    files |= {binary_name(b.target): b.data for b in entry.binaries}
    return {f"{folder}/{name}": data for name, data in files.items()}


def _header_json(header: Header, unchecked: Sequence[str]) -> Json:
    return {
        "format": FORMAT, "format_version": FORMAT_VERSION, "name": header.name, "device": header.device,
        "device_name": header.device_name, "driver": header.driver, "torch": header.torch,
        "created_by": header.created_by, "unchecked": list(unchecked),
    }  # fmt: skip


def _record(entry: Entry, folder: str) -> Json:
    decisions: dict[str, Json] = {mode: _decision_json(d) for mode, d in sorted(entry.decisions.items())}
    return {
        "folder": folder, "variant": entry.variant.id, "decisions": decisions, "provenance": entry.provenance,
        "share": entry.share, "backend": entry.binary.backend, "binaries": [_binary_json(b) for b in entry.binaries],
    }  # fmt: skip


def _binary_json(binary: Binary) -> Json:
    tools = binary.tools
    return {
        "target": binary.target, "sha256": binary.digest, "refusals": list(binary.refusals),
        "abi": binary.abi, "abi_version": binary.abi_version,
        "tools": {"compiler": tools.compiler, "flags": list(tools.flags), "tvm_ffi": tools.tvm_ffi,
                  "glibc": tools.glibc},
    }  # fmt: skip


def _decision_json(decision: Decision) -> Json:
    return {"use": True} if isinstance(decision, Use) else {"use": False, "reason": decision.reason}
