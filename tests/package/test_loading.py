"""`kernelforge.load` and trust: a package that nobody trusts is refused before anything of it touches the disk."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import kernelforge
from kernelforge import forge
from kernelforge.errors import UntrustedPackage
from kernelforge.package.reader import read_package
from kernelforge.package.signing import Signer
from kernelforge.package.trust import pin_key, trust_hash
from kernelforge.package.types import Package
from kernelforge.package.writer import write_package
from kernelforge.settings import Settings, load_settings

FIXTURE = Path(__file__).parent / "fixtures" / "format_1.cast"
STRANGER = Signer.of(b"\5" * 32)


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """Of a user who trusts nothing yet."""
    return replace(load_settings({"KFORGE_CONFIG_DIR": str(tmp_path / "config")}), cache_dir=tmp_path / "cache")


@pytest.fixture
def foreign(tmp_path: Path) -> Package:
    """A stranger's package of two kernels that can run here."""
    older = read_package(FIXTURE)
    return write_package(tmp_path / "foreign.cast", older.entries, header=older.header, signer=STRANGER)


def test_a_strangers_package_is_refused_and_nothing_of_it_is_extracted(foreign: Package, settings: Settings) -> None:
    with pytest.raises(UntrustedPackage, match="whom nobody here has said to trust") as caught:
        kernelforge.load(foreign.path, settings=settings)
    assert caught.value.exit_code == 9
    assert not settings.cache_dir.exists()
    assert not settings.config_dir.exists()


def test_being_switched_off_is_no_way_around(foreign: Package, settings: Settings) -> None:
    with pytest.raises(UntrustedPackage):
        kernelforge.load(foreign.path, settings=replace(settings, disabled=True))


def test_every_way_to_trust_it(foreign: Package, settings: Settings) -> None:
    config_dir, given = settings.config_dir, f"sha256:{foreign.digest}"
    assert kernelforge.load(foreign.path, settings=settings, trust=given).package.digest == foreign.digest
    assert kernelforge.load(foreign.path, settings=settings, trust={given, "sha256:" + "0" * 64})
    assert kernelforge.load(foreign.path, settings=replace(settings, trust=(given,)))
    with pytest.raises(UntrustedPackage):  # none of these is remembered
        kernelforge.load(foreign.path, settings=settings)
    trust_hash(config_dir, foreign.digest, "foreign.cast")
    assert kernelforge.load(foreign.path, settings=settings)
    changed = write_package(
        foreign.path, foreign.entries, header=replace(foreign.header, name="x"), signer=STRANGER
    )  # fmt: skip
    with pytest.raises(UntrustedPackage):
        kernelforge.load(changed.path, settings=settings)
    pin_key(config_dir, STRANGER.public_key, "a friend")
    assert kernelforge.load(changed.path, settings=settings)


def test_what_was_exported_here_loads_silently(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    older = read_package(FIXTURE)
    path = tmp_path / "mine.cast"
    write_package(path, older.entries, header=older.header)
    settings = replace(load_settings(), cache_dir=tmp_path / "cache")
    assert kernelforge.load(path, settings=settings)
    assert "trust" not in caplog.text


LOOK = """
import sys
from pathlib import Path

loaded = []
sys.addaudithook(lambda event, args: loaded.append(str(args[0])) if event == "ctypes.dlopen" else None)
from kernelforge import forge

for look in (forge.inspect_package, forge.verify_package):
    report = look(Path(sys.argv[1]))
    assert not report.trusted
print([name for name in loaded if len(Path(name).stem) == 64])
"""


def test_looking_loads_nothing_of_it(foreign: Package, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KFORGE_CONFIG_DIR", str(settings.config_dir))
    monkeypatch.setenv("KFORGE_CACHE_DIR", str(settings.cache_dir))
    command = [sys.executable, "-c", LOOK, str(foreign.path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, "[]"), done.stderr
    assert not (settings.cache_dir / "packages").exists()


def test_verify_says_why_a_kernel_would_be_off(foreign: Package, settings: Settings) -> None:
    binary = replace(foreign.entries[0].binary, target="x86-64-v99")
    entries = [replace(foreign.entries[0], binaries=(binary,)), foreign.entries[1]]
    write_package(foreign.path, entries, header=replace(foreign.header, torch=torch_version()), signer=STRANGER)
    report = forge.verify_package(foreign.path, settings=settings)
    assert [check.ok for check in report.checks] == [True, False, True]
    assert "needs a CPU of level x86-64-v99" in report.checks[1].detail
    newer = replace(binary, target="x86-64", abi_version=9)
    entries[0] = replace(entries[0], binaries=(newer,))
    write_package(foreign.path, entries, header=replace(foreign.header, torch=torch_version()), signer=STRANGER)
    report = forge.verify_package(foreign.path, settings=settings)
    assert "is called by the ABI kforge-c 9, which this version does not know" in report.checks[1].detail


def torch_version() -> str:
    import torch

    return torch.__version__
