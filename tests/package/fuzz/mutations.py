"""Changes of a package that nobody who writes one would make: of its bytes, its container, its content and its seals.

Each takes a source of chance and the original, and gives the bytes of a file. The same seed gives the same file.
"""

from __future__ import annotations

import json
import random
import stat
import struct
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from kernelforge.digest import digest_bytes
from kernelforge.package.archive import pack, unpack
from kernelforge.package.layout import (
    CHECKSUMS,
    HEADER,
    MANIFEST,
    SEALS,
    SIGNATURE,
    checksums,
    in_order,
    signature_bytes,
)
from kernelforge.package.signing import Signer

STRANGER = Signer.of(b"\1" * 32)


@dataclass(frozen=True, slots=True, kw_only=True)
class Original:
    """What is changed. other: another file by the same signer, from which parts are taken."""

    data: bytes
    other: bytes
    files: dict[str, bytes]

    @classmethod
    def of(cls, data: bytes, other: bytes) -> Original:
        return cls(data=data, other=other, files=unpack(data, first=HEADER))


Mutation: TypeAlias = Callable[[random.Random, Original], bytes]


# Bytes of the file.


def flipped_bits(rng: random.Random, original: Original) -> bytes:
    data = bytearray(original.data)
    for _ in range(rng.choice([1, 1, 1, 2, 8])):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    return bytes(data)


def set_bytes(rng: random.Random, original: Original) -> bytes:
    data = bytearray(original.data)
    at, size = rng.randrange(len(data)), rng.choice([1, 2, 4, 8, 64])
    data[at : at + size] = rng.choice([bytes(size), b"\xff" * size, rng.randbytes(size)])
    return bytes(data)


def inserted(rng: random.Random, original: Original) -> bytes:
    at = rng.choice([0, len(original.data), rng.randrange(len(original.data))])
    return original.data[:at] + rng.randbytes(rng.choice([1, 2, 7, 100, 70_000])) + original.data[at:]


def deleted(rng: random.Random, original: Original) -> bytes:
    at = rng.randrange(len(original.data))
    return original.data[:at] + original.data[at + rng.choice([1, 2, 7, 100, 5000]) :]


def truncated(rng: random.Random, original: Original) -> bytes:
    return original.data[: rng.randrange(len(original.data))]


def moved_block(rng: random.Random, original: Original) -> bytes:
    a, b, c = sorted(rng.randrange(len(original.data)) for _ in range(3))
    data = original.data
    return rng.choice([data[:a] + data[b:c] + data[a:b] + data[c:], data[:b] + data[a:b] + data[b:]])


def spliced(rng: random.Random, original: Original) -> bytes:
    a, b = rng.randrange(len(original.data)), rng.randrange(len(original.other))
    return rng.choice(
        [original.data[:a] + original.other[b:], original.data[:a] + original.other[a:], original.data + original.other]
    )


# The container.


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One file of a ZIP as its local header and the central directory tell it, which need not agree."""

    name: bytes
    data: bytes
    local: dict[str, Any] = field(default_factory=dict)
    central: dict[str, Any] = field(default_factory=dict)
    descriptor: bytes = b""


def zip_of(
    members: Sequence[Member], *, end: dict[str, int] | None = None, comment: bytes = b"", before: bytes = b"",
    gap: bytes = b"", directory: Sequence[int] | None = None, zip64: bool = False,
) -> bytes:  # fmt: skip
    """A ZIP in which everything can be told wrongly.

    Args:
        end: fields of the end record that are not what they should be. before: bytes in front of all. gap: bytes
            before the directory. directory: which members it lists, in its order.
    """
    parts, offsets = [before], []
    for member in members:
        offsets.append(sum(map(len, parts)))
        fields = _fields(member) | member.local
        parts.append(_local(fields) + fields["name"] + fields["extra"] + member.data + member.descriptor)
    parts.append(gap)
    start = sum(map(len, parts))
    listed = range(len(members)) if directory is None else directory
    central = b"".join(_central(_fields(members[i]) | {"offset": offsets[i]} | members[i].central) for i in listed)
    told = {"disk": 0, "count": len(listed), "all": len(listed), "size": len(central), "start": start} | (end or {})
    extra = b""
    if zip64:
        extra = struct.pack("<4sQ2H2I4Q", b"PK\6\6", 44, 45, 45, 0, 0, told["count"], told["all"], told["size"], start)
        extra += struct.pack("<4sIQI", b"PK\6\7", 0, start + len(central), 1)
        told |= {"count": 0xFFFF, "all": 0xFFFF, "size": 0xFFFFFFFF, "start": 0xFFFFFFFF}
    record = struct.pack(
        "<4s4H2IH", b"PK\5\6", told["disk"], 0, told["count"] & 0xFFFF, told["all"] & 0xFFFF,
        told["size"] & 0xFFFFFFFF, told["start"] & 0xFFFFFFFF, told.get("comment", len(comment)),
    )  # fmt: skip
    return b"".join([*parts, central, extra, record, comment])


def _fields(member: Member) -> dict[str, Any]:
    return {
        "name": member.name, "version": 20, "flags": 0, "method": 0, "time": 0, "date": 33,
        "crc": zlib.crc32(member.data), "packed": len(member.data), "size": len(member.data), "extra": b"",
        "comment": b"", "mode": (stat.S_IFREG | 0o644) << 16, "offset": 0, "disk": 0, "system": 3,
    }  # fmt: skip


def _local(f: dict[str, Any]) -> bytes:
    return struct.pack(
        "<4s5H3I2H", f.get("magic", b"PK\3\4"), f["version"], f["flags"], f["method"], f["time"], f["date"], f["crc"],
        f["packed"], f["size"], f.get("name_bytes", len(f["name"])), len(f["extra"]),
    )  # fmt: skip


def _central(f: dict[str, Any]) -> bytes:
    fixed = struct.pack(
        "<4s4B4H3I5H2I", f.get("magic", b"PK\1\2"), 20, f["system"], f["version"] & 0xFF, 0, f["flags"], f["method"],
        f["time"], f["date"], f["crc"], f["packed"], f["size"], len(f["name"]), len(f["extra"]), len(f["comment"]),
        f["disk"], 0, f["mode"], f["offset"],
    )  # fmt: skip
    return b"".join([fixed, f["name"], f["extra"], f["comment"]])


def members_of(files: dict[str, bytes]) -> list[Member]:
    return [Member(name=name.encode(), data=data) for name, data in files.items()]


_ODD_NAMES = (
    b"../evil", b"/etc/evil", b"a\\b", b"C:evil", b"a//b", b"./a", b"a/", b"", b"\xff\xfe", b"a\0b", b"HEADER.JSON",
    b"variants", b"variants/..", b"manifest.json/x", b"caf\xc3\xa9", b"x" * 65_535, b"con", b"a\nb", b"..",
    b"SIGNATURE",
)  # fmt: skip


def odd_name(rng: random.Random, original: Original) -> bytes:
    members = members_of(original.files)
    at, name = rng.randrange(len(members)), rng.choice(_ODD_NAMES)
    match rng.randrange(4):
        case 0:
            members[at] = replace(members[at], name=name)
        case 1:
            members[at] = replace(members[at], local={"name": name})
        case 2:
            members[at] = replace(members[at], central={"name": name})
        case _:
            members.insert(at + 1, Member(name=name, data=b"x"))
    return zip_of(members)


def members_changed(rng: random.Random, original: Original) -> bytes:
    members = members_of(original.files)
    at, to = rng.randrange(len(members)), rng.randrange(len(members))
    match rng.randrange(6):
        case 0:
            members[at], members[to] = members[to], members[at]
        case 1:
            del members[at]
        case 2:
            members.insert(to, members[at])
        case 3:
            members[at] = replace(members[at], data=members[to].data)
        case 4:
            rng.shuffle(members)
        case _:
            other = members_of(unpack(original.other, first=HEADER))
            members[at] = rng.choice(other)
    return zip_of(members)


_ODD_FIELDS: dict[str, tuple[Any, ...]] = {
    "flags": (1, 8, 0x800, 0x2000, 0xFFFF), "method": (8, 12, 14, 93, 99), "crc": (0, 1, 0xFFFFFFFF),
    "packed": (0, 1, 1 << 20, 0xFFFFFFFE, 0xFFFFFFFF), "size": (0, 1, 1 << 20, 0xFFFFFFFE, 0xFFFFFFFF),
    "time": (1, 0xFFFF), "date": (0, 1, 0xFFFF), "version": (0, 45, 63, 0xFFFF),
    "extra": (b"\0\0\0\0", b"\1\0\x10\0" + bytes(16), b"\1\0\xff\xff", b"\x99\x99\1\0x", bytes(65_000)),
    "comment": (b"x", bytes(60_000)), "offset": (0, 1, 0xFFFFFFFF, 1 << 20), "disk": (1, 0xFFFF),
    "system": (0, 255), "magic": (b"PK\0\0", b"PK\5\6", b"PK\3\4"), "name_bytes": (0, 1, 0xFFFF),
    "mode": ((stat.S_IFLNK | 0o777) << 16, (stat.S_IFDIR | 0o755) << 16, 0, (stat.S_IFREG | 0o4755) << 16, 0xFFFFFFFF),
}  # fmt: skip


def odd_fields(rng: random.Random, original: Original) -> bytes:
    members = members_of(original.files)
    for _ in range(rng.choice([1, 1, 2, 4])):
        at, key = rng.randrange(len(members)), rng.choice(sorted(_ODD_FIELDS))
        value = rng.choice(_ODD_FIELDS[key])
        where = rng.randrange(3)
        local = members[at].local | ({key: value} if where != 1 else {})
        central = members[at].central | ({key: value} if where != 0 else {})
        members[at] = replace(members[at], local=local, central=central)
    return zip_of(members)


def compressed(rng: random.Random, original: Original) -> bytes:
    members = members_of(original.files)
    for at in rng.sample(range(len(members)), rng.randint(1, len(members))):
        data = members[at].data
        squeezer = zlib.compressobj(rng.randint(0, 9), zlib.DEFLATED, -15)
        packed = squeezer.compress(data) + squeezer.flush()
        told = {"method": 8, "crc": zlib.crc32(data), "size": len(data), "packed": len(packed)}
        members[at] = replace(members[at], data=packed, local=told, central=told)
    return zip_of(members)


def bomb(rng: random.Random, original: Original) -> bytes:
    size = rng.choice([1 << 20, 64 << 20, 255 << 20])
    squeezer = zlib.compressobj(9, zlib.DEFLATED, -15)
    packed = b"".join(squeezer.compress(bytes(1 << 20)) for _ in range(min(size >> 20, 8))) + squeezer.flush()
    told = {"method": 8, "crc": 0, "size": size, "packed": len(packed)}
    members = members_of(original.files)
    if rng.random() < 0.5:
        members = [m for m in members if m.name != SIGNATURE.encode()]
    member = Member(name=b"variants/zeros", data=packed, local=told, central=told)
    return zip_of([*members, *[replace(member, name=b"variants/z%d" % i) for i in range(rng.choice([1, 40]))]])


def with_descriptors(rng: random.Random, original: Original) -> bytes:
    members = []
    for member in members_of(original.files):
        crc, size = zlib.crc32(member.data), len(member.data)
        descriptor = rng.choice([b"PK\7\10", b""]) + struct.pack("<3I", crc, size, size)
        told = {"flags": 8, "crc": 0, "packed": 0, "size": 0} if rng.random() < 0.8 else {}
        members.append(replace(member, descriptor=descriptor if told else b"", local=told, central={"flags": 8}))
    return zip_of(members)


def odd_end(rng: random.Random, original: Original) -> bytes:
    members, count = members_of(original.files), len(original.files)
    choice = rng.randrange(7)
    if choice == 0:
        key = rng.choice(["disk", "count", "all", "size", "start", "comment"])
        return zip_of(members, end={key: rng.choice([0, 1, count - 1, count + 1, 0xFFFF])})
    if choice == 1:
        return zip_of(members, comment=rng.randbytes(rng.choice([1, 22, 65_535])))
    if choice == 2:
        return zip_of(members, before=rng.randbytes(rng.choice([1, 100])))
    if choice == 3:
        return zip_of(members, gap=rng.randbytes(rng.choice([1, 100])))
    if choice == 4:
        return zip_of(members, zip64=True)
    if choice == 5:
        listed = rng.choices(range(count), k=rng.choice([1, count, count + 1]))
        return zip_of(members, directory=listed)
    return zip_of(members) + zip_of(members)


# The content, sealed again as far as the one who changes it can.


def _value(rng: random.Random, depth: int = 0) -> str:
    """The text of a JSON value, or of nearly one."""
    odd = (
        "NaN", "Infinity", "-Infinity", "1e999", "-0.0", "1e-999", "9" * 400, "9" * 5000, "-1", "0", "1", "0.5", "true",
        "null", '""', '"x"', '"\\ud800"', '"\\u0000"', '"' + "y" * 3000 + '"', "[]", "{}", '{"a":1,"a":2}', "01", "'",
        "[" * 40 + "]" * 40, "[" * 3000 + "]" * 3000, '{"a":' * 50 + "1" + "}" * 50, "18446744073709551616", "\xff", "",
        '{"float": "nan"}', '{"use": true}', '"../../evil"', '"' + "0" * 64 + '"', "4294967296", "2.0", "[[[[]]]]",
    )  # fmt: skip
    if depth < 2 and rng.random() < 0.2:
        return f"[{_value(rng, depth + 1)}, {_value(rng, depth + 1)}]"
    return rng.choice(odd)


_HOLE = "\x01hole\x01"


def _with_hole(rng: random.Random, value: Any) -> Any:
    """The value with one of its parts replaced, renamed, dropped or doubled, and perhaps a hole for an odd text."""
    if isinstance(value, dict) and value and rng.random() < 0.85:
        key = rng.choice(sorted(value))
        match rng.randrange(8):
            case 0:
                return {k: v for k, v in value.items() if k != key}
            case 1:
                return {**value, rng.choice(["x", "", "files", "../x", "é"]): _HOLE}
            case 2:
                return {(rng.choice(sorted(value)) + "x" if k == key else k): v for k, v in value.items()}
            case _:
                return {**value, key: _with_hole(rng, value[key])}
    if isinstance(value, list) and value and rng.random() < 0.85:
        at = rng.randrange(len(value))
        match rng.randrange(6):
            case 0:
                return value[:at] + value[at + 1 :]
            case 1:
                return [*value, value[at]]
            case _:
                return [*value[:at], _with_hole(rng, value[at]), *value[at + 1 :]]
    return _HOLE


def changed_json(rng: random.Random, data: bytes) -> bytes:
    """The text of a JSON file with something odd in it."""
    try:
        value = _with_hole(rng, json.loads(data))
    except (ValueError, RecursionError):
        return changed_content(rng, data)  # it was changed before
    text = json.dumps(value, indent=rng.choice([1, None]), ensure_ascii=False)
    return text.replace(json.dumps(_HOLE), _value(rng)).encode("latin-1", errors="replace")


def changed_content(rng: random.Random, data: bytes) -> bytes:
    """Any file with some of its bytes changed."""
    changed = bytearray(data) or bytearray(b"\0")
    for _ in range(rng.choice([1, 3])):
        changed[rng.randrange(len(changed))] = rng.randrange(256)
    return bytes(changed)


def _changed_files(rng: random.Random, original: Original) -> dict[str, bytes]:
    files = dict(original.files)
    for _ in range(rng.choice([1, 1, 2])):
        name = rng.choice(sorted(set(files) - SEALS))
        as_json = name.endswith(".json") and rng.random() < 0.8
        files[name] = changed_json(rng, files[name]) if as_json else changed_content(rng, files[name])
    return files


def resealed(files: dict[str, bytes]) -> dict[str, bytes]:
    """The files with everything right that can be made right without a key: sizes, hashes, ids of binaries."""
    try:
        manifest = json.loads(files[MANIFEST])
        inner = {n: d for n, d in files.items() if n not in SEALS}
        manifest["files"] = {n: {"size": len(d), "sha256": digest_bytes(d)} for n, d in inner.items()}
        for entry in manifest["entries"]:
            for binary in entry["binaries"]:
                name = f"{entry['folder']}/binaries/{binary['target']}/kernel.so"
                binary["sha256"] = digest_bytes(files[name])
        files = {**files, MANIFEST: json.dumps(manifest).encode()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        pass  # the manifest is one of what was changed
    return {**files, CHECKSUMS: checksums(files)}


def rehashed(rng: random.Random, original: Original) -> bytes:
    """Changed, with hashes that fit, and the signature of the original."""
    files = _changed_files(rng, original)
    files = resealed(files) if rng.random() < 0.7 else {**files, CHECKSUMS: checksums(files)}
    return pack(files, compress=False)


def signed_by_a_stranger(rng: random.Random, original: Original) -> bytes:
    """Changed, and signed by another key: all is right, but for the change and the signer."""
    files = resealed(_changed_files(rng, original))
    return pack(_signed(files), compress=False)


def manifest_by_a_stranger(rng: random.Random, original: Original) -> bytes:
    """The manifest itself changed, and signed by another key."""
    files = {**original.files, MANIFEST: changed_json(rng, original.files[MANIFEST])}
    return pack(_signed(files), compress=False)


def _signed(files: dict[str, bytes]) -> dict[str, bytes]:
    files = {**files, SIGNATURE: signature_bytes(STRANGER, files[MANIFEST])}
    return {**files, CHECKSUMS: checksums(files)}


def only_the_signature(rng: random.Random, original: Original) -> bytes:
    """Nothing changed but who signed, or whose signature it is said to be."""
    files, other = dict(original.files), unpack(original.other, first=HEADER)
    mine = files[SIGNATURE]
    stranger = signature_bytes(STRANGER, files[MANIFEST])
    files[SIGNATURE] = rng.choice([
        stranger, other[SIGNATURE], mine[: len(mine) // 2] + stranger[len(mine) // 2 :], mine + b"\n", mine.upper(),
        mine.replace(b"\n", b"\r\n"), stranger[:110] + mine[110:], changed_content(rng, mine), mine + stranger,
        mine[:-66] + changed_content(rng, mine[-66:]),
    ])  # fmt: skip
    return pack({**files, CHECKSUMS: checksums(files)}, compress=False)


def unsigned(rng: random.Random, original: Original) -> bytes:
    """Without its signature, with or without the older version that has none."""
    files = {n: d for n, d in original.files.items() if n != SIGNATURE}
    if rng.random() < 0.7:
        older = rng.choice([b'"format_version": 1', b'"format_version": 0', b'"format_version": 3'])
        files[HEADER] = files[HEADER].replace(b'"format_version": 2', older)
        files = resealed(files)
    names = in_order({**files, SIGNATURE: b""})
    files[CHECKSUMS] = checksums(files)
    return pack({n: files[n] for n in names if n in files}, compress=rng.random() < 0.5)


MUTATIONS: tuple[Mutation, ...] = (
    flipped_bits, set_bytes, inserted, deleted, truncated, moved_block, spliced, odd_name, members_changed, odd_fields,
    compressed, bomb, with_descriptors, odd_end, rehashed, signed_by_a_stranger, manifest_by_a_stranger,
    only_the_signature, unsigned,
)  # fmt: skip


WITHOUT_SEALS = MUTATIONS[: MUTATIONS.index(rehashed)]
"""Those that know nothing of manifest and signature, and so fit a package of any version."""


def mutated(seed: int, original: Original, mutations: Sequence[Mutation] = MUTATIONS) -> tuple[str, bytes]:
    """The name of the change and the file, for a seed."""
    rng = random.Random(seed)
    mutation = mutations[seed % len(mutations)]
    return mutation.__name__, mutation(rng, original)
