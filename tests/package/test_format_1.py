"""Packages of format version 1 are read as they were: with everything in them, unsigned, and so never trusted silently.

`fixtures/format_1.cast` was written by the writer of that version. Its two kernels add 1/1024 to their results.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import kernelforge
from kernelforge.digest import digest_bytes
from kernelforge.errors import PackageError, UntrustedPackage
from kernelforge.package.archive import pack, unpack
from kernelforge.package.layout import CHECKSUMS, HEADER, MANIFEST, checksums
from kernelforge.package.reader import read_package
from kernelforge.package.serial import accepted_from_json, audit_from_json, measurement_from_json
from kernelforge.package.types import Use
from kernelforge.package.writer import write_package
from kernelforge.settings import Settings, load_settings

FIXTURE = Path(__file__).parent / "fixtures" / "format_1.cast"
DIGEST = "dc08a26befe05fc985f6d6ec4d8e44c493e51576fb4bda901106ae3e45ee586c"


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return replace(load_settings(), cache_dir=tmp_path / "cache", native=False)


def edited(tmp_path: Path, change: Callable[[dict[str, Any]], object], *, name: str = HEADER) -> Path:
    """The package with one of its JSON files changed, and right hashes."""
    files = unpack(FIXTURE.read_bytes(), first=HEADER)
    value = json.loads(files[name])
    change(value)
    files[name] = json.dumps(value).encode()
    manifest = json.loads(files[MANIFEST])
    if name != MANIFEST:
        manifest["files"][name] = {"size": len(files[name]), "sha256": digest_bytes(files[name])}
    files[MANIFEST] = json.dumps(manifest).encode()
    path = tmp_path / "edited.cast"
    path.write_bytes(pack({**files, CHECKSUMS: checksums(files)}))
    return path


def test_it_holds_what_it_held() -> None:
    package = read_package(FIXTURE)
    assert (package.header.format_version, package.header.name, package.header.torch) == (1, "two_kernels", "2.13.0")
    assert (package.digest, package.signer, package.header.driver) == (DIGEST, "", "")
    add, softmax = package.entries
    assert (add.variant.operator, softmax.variant.operator) == ("add", "softmax")
    for entry in package.entries:
        assert len(entry.binaries) == 1
        assert (entry.binary.target, entry.binary.backend) == ("x86-64", "cpp")
        assert (entry.binary.abi, entry.binary.abi_version) == ("kforge-c", 1)
        assert entry.binary.data.startswith(b"\x7fELF")
        assert entry.decision("eager") == Use()
        assert accepted_from_json(entry.verdict).cases == 3
        assert measurement_from_json(entry.measurement).speedup.median == 5.0
        assert audit_from_json(entry.audit).kind == "generated"
        assert entry.provenance["generator"] == "manual"


def test_it_loads_only_if_its_hash_is_trusted(settings: Settings) -> None:
    import torch

    with pytest.raises(UntrustedPackage, match="is not signed"):
        kernelforge.load(FIXTURE, settings=settings)
    assert not settings.cache_dir.exists()  # nothing was even extracted
    with pytest.raises(UntrustedPackage):
        kernelforge.load(FIXTURE, settings=settings, trust="sha256:" + "0" * 64)
    package = kernelforge.load(FIXTURE, settings=settings, trust=f"sha256:{DIGEST}")
    if not torch.__version__.startswith("2.13."):
        pytest.skip("judged under torch 2.13")
    x = torch.linspace(-1, 1, 32).reshape(4, 8)
    with torch.no_grad(), package.dispatch():
        got = torch.softmax(x, -1)
    assert torch.allclose(got, torch.softmax(x, -1) + 1 / 1024, atol=1e-6)
    assert [row.hits for row in package.stats()] == [0, 1]


def test_written_again_it_is_of_the_present_format_and_signed(tmp_path: Path) -> None:
    old = read_package(FIXTURE)
    new = write_package(tmp_path / "new.cast", old.entries, header=old.header)
    assert new.header == replace(old.header, format_version=2)
    assert new.entries == old.entries
    assert new.signer


def test_headers_from_before_memory_was_checked(tmp_path: Path) -> None:
    package = read_package(edited(tmp_path, lambda head: head.pop("unchecked")))
    assert package.header.unchecked == () and len(package.entries) == 2
    assert all(entry.memory == {} for entry in package.entries)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda head: head.update(format_version=2), "must have a SIGNATURE"),
        (lambda head: head.update(format_version=0), "does not describe"),
        (lambda head: head.update(unchecked=None), "unchecked"),
    ],
)
def test_headers_that_are_refused(tmp_path: Path, change: Callable[[dict[str, Any]], object], match: str) -> None:
    with pytest.raises(PackageError, match=match):
        read_package(edited(tmp_path, change))


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda m: m["entries"][0]["binary"].update(backend="rust"), "unknown backend"),
        (lambda m: m["entries"][0]["binary"].update(sha256="0" * 64), "is not the binary"),
        (lambda m: m["entries"].pop(), "belongs to no entry"),
        (lambda m: m["entries"][0].update(share="all"), "share"),
        (lambda m: m["files"].pop(HEADER), "HEADER.json is not listed"),
    ],
)
def test_manifests_that_are_refused(tmp_path: Path, change: Callable[[dict[str, Any]], object], match: str) -> None:
    with pytest.raises(PackageError, match=match):
        read_package(edited(tmp_path, change, name=MANIFEST))


def test_a_changed_file_is_refused(tmp_path: Path) -> None:
    files = unpack(FIXTURE.read_bytes(), first=HEADER)
    name = next(n for n in files if n.endswith("kernel.so"))
    files[name] = files[name][:-1] + b"\1"
    (tmp_path / "edited.cast").write_bytes(pack(files))
    with pytest.raises(PackageError, match="sha256 differs from checksums"):
        read_package(tmp_path / "edited.cast")
