"""Thousands of packages that nobody would write: refused, or intact but unknown; never trusted, never harmful.

A few hundred in every run, `MUTANTS` of them with KFORGE_LONG=1 (`make fuzz`).
"""

from __future__ import annotations

import os
import resource
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path

import pytest
from tests.package.fuzz.mutations import MUTATIONS, WITHOUT_SEALS, Mutation, Original, mutated

from kernelforge.errors import PackageError, UntrustedPackage
from kernelforge.package.reader import extract_binary, read_package
from kernelforge.package.signing import Signer, local_signer
from kernelforge.package.trust import Unknown, pin_key, require_trust, trust_hash, trust_of
from kernelforge.package.writer import write_package
from kernelforge.report.packages import package_report
from kernelforge.report.tables import package_grids
from kernelforge.settings import Settings, load_settings

LONG = os.environ.get("KFORGE_LONG") == "1"
MUTANTS = 10_000 if LONG else 400
UNSIGNED_MUTANTS = 2_000 if LONG else 100
SECONDS_EACH = 10.0
GROWTH_BYTES = 1 << 30
FIXTURE = Path(__file__).parents[1] / "fixtures" / "format_1.cast"

_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_CHANGES = frozenset({
    "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.link", "os.symlink", "os.chmod", "os.chown", "os.truncate",
    "shutil.copyfile", "shutil.move", "os.putenv",
})  # fmt: skip
_RUNS = frozenset({
    "exec", "compile", "ctypes.dlopen", "pickle.find_class", "marshal.loads", "subprocess.Popen", "os.system",
    "os.exec", "os.posix_spawn", "os.fork", "socket.connect", "urllib.Request",
})  # fmt: skip


class Watch:
    """What this process does to files, and what it runs, while `on`. Python's own audit events: nothing is missed."""

    def __init__(self) -> None:
        self.on = False
        self.seen: list[str] = []
        sys.addaudithook(self._hook)

    def _hook(self, event: str, args: tuple[object, ...]) -> None:
        if not self.on:
            return
        if event in _CHANGES or event in _RUNS:
            self.seen.append(f"{event} {args[:2]!r}")
        elif event == "open" and isinstance(args[2], int) and args[2] & _WRITES:
            self.seen.append(f"open {args!r}")


@pytest.fixture(scope="module")
def watch() -> Iterator[Watch]:
    watch = Watch()  # there is no way to take a hook away
    yield watch
    watch.on = False


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return load_settings({"KFORGE_CONFIG_DIR": str(tmp_path / "config")})


def judge(data: bytes, path: Path, settings: Settings, watch: Watch, cache: Path) -> str:
    """Read, show and offer for loading one file that differs from the trusted one. Returns how it ended."""
    path.write_bytes(data)
    started = time.monotonic()
    watch.on, watch.seen = True, []
    try:
        package = read_package(path)
    except PackageError as error:
        assert error.message.startswith(f"{path}: ") and error.hint
        return "refused"
    finally:
        watch.on = False
        assert watch.seen == []
        assert time.monotonic() - started < SECONDS_EACH
    assert isinstance(trust_of(package, settings), Unknown), "a file that nobody made is trusted"
    with pytest.raises(UntrustedPackage):
        require_trust(package, settings)
    assert package_grids(package_report(package, path=str(path), size_bytes=len(data), checks=()))
    for entry in package.entries:
        for binary in entry.binaries:
            # Also what nobody should load lands under its hash, in the cache and nowhere else.
            extracted = extract_binary(binary, cache)
            assert extracted.read_bytes() == binary.data
            assert extracted.resolve() == cache / "packages" / f"{binary.digest}.so"
    return "unknown"


def run(
    original: Original, path: Path, settings: Settings, watch: Watch, *, mutants: int,
    mutations: Sequence[Mutation] = MUTATIONS,
) -> Counter[tuple[str, str]]:  # fmt: skip
    """Judge that many files that differ from the original. Returns how many of each mutation ended how."""
    cache = path.parent / "cache"
    ends: Counter[tuple[str, str]] = Counter()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for seed in count():
        if ends.total() == mutants:
            break
        name, data = mutated(seed, original, mutations)
        if data == original.data:
            continue
        try:
            ends[name, judge(data, path, settings, watch, cache)] += 1
        except BaseException as error:
            error.add_note(f"seed {seed}: {name}")
            raise
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak) * 1024
    assert grown < GROWTH_BYTES, f"reading took {grown} bytes"
    assert {p.name for p in path.parent.iterdir()} <= {path.name, "cache", "original.cast", "other.cast"}
    return ends


@pytest.mark.timeout(3600 if LONG else 300)
def test_mutants_of_a_signed_package(tmp_path: Path, settings: Settings, watch: Watch) -> None:
    older = read_package(FIXTURE)
    signer = local_signer(settings.config_dir)
    pin_key(settings.config_dir, Signer.of(b"\2" * 32).public_key, "somebody else")
    folder = tmp_path / "sandbox"
    folder.mkdir()
    written = write_package(folder / "original.cast", older.entries, header=older.header, signer=signer)
    write_package(folder / "other.cast", older.entries[1:], header=older.header, signer=signer)
    trust_hash(settings.config_dir, written.digest, "the original")
    original = Original.of((folder / "original.cast").read_bytes(), (folder / "other.cast").read_bytes())
    ends = run(original, folder / "mutant.cast", settings, watch, mutants=MUTANTS)
    for name in sorted({name for name, _ in ends}):
        print(f"{name}: {ends[name, 'refused']} refused, {ends[name, 'unknown']} unknown")
    # Without a stranger's signature, or none at all, no mutant is even intact.
    assert {name for name, end in ends if end == "unknown"} <= {
        "signed_by_a_stranger", "manifest_by_a_stranger", "only_the_signature", "unsigned",
    }  # fmt: skip
    assert {name for name, _ in ends} == {m.__name__ for m in MUTATIONS}
    assert ends["only_the_signature", "unknown"], "a stranger's valid signature must make it a stranger's package"


@pytest.mark.timeout(3600 if LONG else 300)
def test_mutants_of_an_unsigned_package(tmp_path: Path, settings: Settings, watch: Watch) -> None:
    data = FIXTURE.read_bytes()
    trust_hash(settings.config_dir, read_package(FIXTURE).digest, "the original")
    folder = tmp_path / "sandbox"
    folder.mkdir()
    original = Original.of(data, data)
    run(original, folder / "mutant.cast", settings, watch, mutants=UNSIGNED_MUTANTS, mutations=WITHOUT_SEALS)
