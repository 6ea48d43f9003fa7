"""What is written is what is read, the same content is the same bytes, and a failed write leaves nothing."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from kernelforge.digest import digest_bytes
from kernelforge.errors import PackageError
from kernelforge.evaluate.types import Scored
from kernelforge.package.reader import read_package
from kernelforge.package.serial import accepted_from_json, audit_from_json, measurement_from_json
from kernelforge.package.signing import Signer
from kernelforge.package.types import Binary, Entry, Header, Tools
from kernelforge.package.writer import write_package

MakeEntry = Callable[[str], Entry]


def test_read_gives_what_was_written(tmp_path: Path, header: Header, entry_of: MakeEntry, scored: Scored) -> None:
    entries = (entry_of("exp"), entry_of("relu"))
    written = write_package(tmp_path / "a.cast", entries[::-1], header=header)
    package = read_package(tmp_path / "a.cast")
    assert package == written
    assert (package.header, package.entries) == (header, entries)
    entry = package.entries[0]
    assert measurement_from_json(entry.measurement) == scored.measurement
    assert audit_from_json(entry.audit) == scored.audit
    verdict = accepted_from_json(entry.verdict)
    assert (verdict.cases, verdict.bitwise) == (4, False)
    assert str(verdict.worst.rms) == "nan"


def test_the_same_content_gives_the_same_bytes(tmp_path: Path, header: Header, entry_of: MakeEntry) -> None:
    write_package(tmp_path / "a.cast", [entry_of("exp"), entry_of("relu")], header=header)
    write_package(tmp_path / "b.cast", [entry_of("relu"), entry_of("exp")], header=header)
    assert (tmp_path / "a.cast").read_bytes() == (tmp_path / "b.cast").read_bytes()


def test_other_tools_can_read_it(written: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(written) as archive:
        assert archive.testzip() is None
        names = archive.namelist()
        archive.extractall(tmp_path / "out")
    assert names[0] == "HEADER.json"
    assert sum(name.endswith("/kernel.cpp") for name in names) == 2
    subprocess.run(["sha256sum", "--check", "--strict", "checksums.sha256"], cwd=tmp_path / "out", check=True)


def test_another_key_changes_nothing_but_the_signature(tmp_path: Path, header: Header, entry_of: MakeEntry) -> None:
    for path, seed in ((tmp_path / "a.cast", b"\1"), (tmp_path / "b.cast", b"\2")):
        write_package(path, [entry_of("exp")], header=header, signer=Signer.of(seed * 32))
    with zipfile.ZipFile(tmp_path / "a.cast") as one, zipfile.ZipFile(tmp_path / "b.cast") as two:
        assert one.namelist() == two.namelist()
        names = {name for name in one.namelist() if one.read(name) != two.read(name)}
    assert names == {"SIGNATURE", "checksums.sha256"}


def test_the_header_is_first_and_nothing_is_compressed(written: Path) -> None:
    with zipfile.ZipFile(written) as archive:
        assert archive.namelist()[:4] == ["HEADER.json", "manifest.json", "SIGNATURE", "checksums.sha256"]
        assert archive.namelist()[4:] == sorted(archive.namelist()[4:])
        assert {info.compress_type for info in archive.infolist()} == {zipfile.ZIP_STORED}


def test_an_entry_may_have_binaries_for_several_targets(tmp_path: Path, header: Header, entry_of: MakeEntry) -> None:
    entry = entry_of("exp")
    tools = Tools(compiler="clang 17", flags=("-O2",), tvm_ffi="0.1.15", glibc="2.36")
    other = Binary(
        data=b"\x7fELF other", digest=digest_bytes(b"\x7fELF other"), backend="cpp", target="x86-64-v2",
        refusals=("number of arguments",), abi="kforge-c", abi_version=7, tools=tools,
    )  # fmt: skip
    both = replace(entry, binaries=(entry.binary, other))
    write_package(tmp_path / "a.cast", [both], header=header)
    (got,) = read_package(tmp_path / "a.cast").entries
    assert got == both
    assert got.binary == entry.binary  # the first stays the first, whatever the names of the targets
    assert (got.binaries[0].callable, got.binaries[1].callable) == (True, False)
    with zipfile.ZipFile(tmp_path / "a.cast") as archive:
        names = {Path(name).parent.name for name in archive.namelist() if name.endswith("kernel.so")}
    assert names == {"x86-64-v2", "x86-64-v3"}


@pytest.mark.parametrize(
    ("change", "match"),
    [({"target": "x86-64-v3"}, "two binaries for one target"), ({"target": ".."}, "cannot be the name of a folder"),
     ({"target": ""}, "cannot be the name"), ({"target": "a/b"}, "cannot be the name"),
     ({"target": "X86-64-V3"}, "upper and lower case"), ({"backend": "cuda"}, "of one backend")],
)  # fmt: skip
def test_binaries_that_do_not_go_together(
    tmp_path: Path, header: Header, entry_of: MakeEntry, change: dict[str, str], match: str
) -> None:
    entry = entry_of("exp")
    other = replace(entry.binary, target="other")
    wrong = replace(entry, binaries=(entry.binary, replace(other, **change)))  # type: ignore[arg-type]
    with pytest.raises(PackageError, match=match):
        write_package(tmp_path / "a.cast", [wrong], header=header)
    with pytest.raises(PackageError, match="at least one"):
        write_package(tmp_path / "a.cast", [replace(entry, binaries=())], header=header)
    assert not (tmp_path / "a.cast").exists()


def test_what_no_text_can_hold_is_not_written(tmp_path: Path, header: Header, entry_of: MakeEntry) -> None:
    entry = entry_of("exp")
    for wrong in (
        replace(entry, source="\ud800"), replace(entry, measurement={"speedup": float("nan")}),
        replace(entry, provenance={"model": "\udfff"}),
    ):  # fmt: skip
        with pytest.raises(PackageError, match="cannot be written"):
            write_package(tmp_path / "a.cast", [wrong], header=header)
    assert not (tmp_path / "a.cast").exists()


def test_what_a_binary_was_made_with_is_written_down(entry_of: MakeEntry) -> None:
    tools = entry_of("exp").binary.tools
    assert (tools.compiler, tools.flags) == ("g++ 12", ("-O3",))
    assert tools.tvm_ffi.startswith("0.")
    assert f"glibc {tools.glibc}" == os.confstr("CS_GNU_LIBC_VERSION")


def test_the_guard_is_there_to_be_read(written: Path) -> None:
    with zipfile.ZipFile(written) as archive:
        (text,) = [archive.read(n).decode() for n in archive.namelist() if n.endswith("guard.txt") and "exp" in n]
    assert text.splitlines()[0].startswith("exp(input [n0, 8] float32 contiguous")
    assert "n0 from 1 to 64, a multiple of 1" in text.splitlines()


def test_measurements_by_mode(entry_of: MakeEntry) -> None:
    entry = entry_of("exp")
    assert entry.measured("eager") == {}
    older = replace(entry, measurement={"dispatch": {"x": 1}})
    assert (older.measured("eager"), older.measured("graphed")) == ({"x": 1}, {})
    newer = replace(entry, measurement={"dispatch": {"x": 1}, "modes": {"eager": {"y": 2}, "graphed": {"z": 3}}})
    assert (newer.measured("eager"), newer.measured("graphed"), newer.measured("other")) == ({"y": 2}, {"z": 3}, {})


def test_two_kernels_for_one_variant_are_an_error(tmp_path: Path, header: Header, entry_of: MakeEntry) -> None:
    with pytest.raises(PackageError, match="two kernels for the variant exp"):
        write_package(tmp_path / "a.cast", [entry_of("exp"), entry_of("exp")], header=header)
    assert not (tmp_path / "a.cast").exists()


def test_a_full_disk_leaves_the_old_package_and_no_half_file(
    written: Path, header: Header, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, listing = written.read_bytes(), set(written.parent.iterdir())

    def full(_descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(PackageError, match="No space left on device"):
        write_package(written, [], header=header)
    assert written.read_bytes() == before
    assert set(written.parent.iterdir()) == listing


LIMITED = """
import resource, sys
from pathlib import Path
from kernelforge.errors import PackageError
from kernelforge.package.reader import read_package
from kernelforge.package.writer import write_package
package = read_package(Path(sys.argv[1]))
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
try:
    write_package(Path(sys.argv[2]), package.entries, header=package.header)
except PackageError as error:
    print(error)
"""


def test_a_write_that_the_system_cuts_short_leaves_nothing(written: Path, tmp_path: Path) -> None:
    target = tmp_path / "sub" / "new.cast"
    target.parent.mkdir()
    command = [sys.executable, "-c", LIMITED, str(written), str(target)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "File too large" in done.stdout
    assert "hint:" in done.stdout
    assert list(target.parent.iterdir()) == []


def test_a_folder_that_does_not_exist(tmp_path: Path, header: Header) -> None:
    with pytest.raises(PackageError, match="No such file or directory"):
        write_package(tmp_path / "missing" / "a.cast", [], header=header)


def test_a_binary_that_changed_since_it_was_judged_is_not_exported(scored: Scored, entry_of: MakeEntry) -> None:
    scored.artifact.path.write_bytes(b"other")
    with pytest.raises(PackageError, match="changed since it was judged"):
        entry_of("exp")
