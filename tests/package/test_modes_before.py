"""Which modes an export times when none are named: those of the package that it replaces."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from kernelforge.mode_timing import modes_before
from kernelforge.package.types import Entry, Header
from kernelforge.package.writer import write_package


def test_nothing_is_known_of_a_file_that_is_no_package(tmp_path: Path) -> None:
    assert modes_before(tmp_path / "none.cast") is None
    (tmp_path / "broken.cast").write_bytes(b"PK")
    assert modes_before(tmp_path / "broken.cast") is None


def test_modes_in_which_an_entry_was_timed(
    tmp_path: Path, header: Header, entry_of: Callable[[str], Entry], written: Path
) -> None:
    assert modes_before(written) is None
    entry = entry_of("relu")
    timed = replace(entry, measurement={**entry.measurement, "modes": {"compiled": {"points": []}, "eager": {"p": 1}}})
    path = tmp_path / "timed.cast"
    write_package(path, [timed, entry_of("exp")], header=header)
    assert modes_before(path) == ("eager", "compiled")
