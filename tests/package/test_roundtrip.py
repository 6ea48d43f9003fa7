"""What is written is what is read, the same content is the same bytes, and a failed write leaves nothing."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from kernelforge.errors import PackageError
from kernelforge.evaluate.types import Scored
from kernelforge.package.reader import read_package
from kernelforge.package.serial import accepted_from_json, audit_from_json, measurement_from_json
from kernelforge.package.types import Entry, Header
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
