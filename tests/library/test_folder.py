"""Kernels on disk: what is kept, what replaces what, what a damaged file does, and writers at once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from kernelforge.benchmark.types import Interval
from kernelforge.cards.types import Variant
from kernelforge.digest import digest
from kernelforge.errors import NotFound, ProjectError
from kernelforge.library.folder import BEST, Library
from kernelforge.library.serial import LARGEST_FILE, to_bytes
from kernelforge.library.types import Origin, StoredKernel, library_key

Make = Callable[..., StoredKernel]


def file_of(library: Library, kernel: StoredKernel) -> Path:
    (path,) = library.folder.glob(f"*-{kernel.id}.json")
    return path


def test_what_was_kept_is_read_back(library: Library, make_kernel: Make) -> None:
    kernel = make_kernel("// ä\nint launch();\n", least_elements=16, language_model="m")
    assert library.keep([kernel]) == 1
    assert Library(library.folder).of(kernel.variant) == (kernel,) == library.kernels()
    assert library.find(kernel.id[:6]) == kernel


def test_a_missing_folder_is_an_empty_library(library: Library, variant: Variant) -> None:
    assert library.of(variant) == library.kernels() == ()
    assert library.clear() == 0
    assert not library.folder.exists()


def test_nobody_else_may_put_kernels_in(library: Library, make_kernel: Make) -> None:
    library.keep([make_kernel()])
    assert library.folder.stat().st_mode & 0o077 == 0


def test_the_best_of_a_key_stay(library: Library, make_kernel: Make) -> None:
    kernels = [make_kernel(f"int x{i};", speedup=1.0 + i) for i in (4, 0, 3, 1, 2)]
    library.keep(kernels)
    assert [k.speedup.median for k in library.kernels()] == [5.0, 4.0, 3.0]
    assert len(list(library.folder.iterdir())) == BEST


def test_another_tool_chain_device_or_torch_has_its_own_best(library: Library, make_kernel: Make) -> None:
    origin = make_kernel().origin
    origins = [origin, replace(origin, toolchain="a compiler 13"), replace(origin, torch="1.0")]
    for i, other in enumerate(origins):
        library.keep(make_kernel(f"int x{j};", speedup=1.0 + i + 0.1 * j, origin=other) for j in range(BEST))
    assert len(library.kernels()) == len(origins) * BEST


def test_the_same_source_certified_again_replaces_what_was_known(library: Library, make_kernel: Make) -> None:
    library.keep([make_kernel("int x;", speedup=2.0)])
    library.keep([make_kernel("int  x; // the same", speedup=3.0, certified=2.0e9)])
    (kernel,) = library.kernels()
    assert (kernel.speedup.median, kernel.certified) == (3.0, 2.0e9)


def test_a_kernel_that_came_out_of_the_library_keeps_where_it_came_from(library: Library, make_kernel: Make) -> None:
    library.keep([make_kernel("int x;")])
    elsewhere = Origin(device="d", toolchain="t", torch="1.0")
    library.keep([make_kernel("int x;", generator="library", notes="from", schedule="", model="B", origin=elsewhere)])
    assert {(k.generator, k.notes, k.schedule, k.model) for k in library.kernels()} == {
        ("template", "8 threads", '{"threads":8}', "Tiny")
    }
    assert len(library.kernels()) == 2


def test_sizes_and_architectures_share_a_key(variant: Variant) -> None:
    assert library_key(replace(variant, min_elements=64)) == library_key(variant)
    gpu = replace(variant, device="cuda", capability="sm_90")
    assert library_key(replace(gpu, capability="sm_80")) == library_key(gpu) != library_key(variant)
    assert library_key(replace(variant, max_elements=64)) != library_key(variant)


def damage(data: bytes) -> dict[str, bytes]:
    """Files that no reader may take for a kernel, nor stumble over."""
    document = json.loads(data)

    def with_content(**changes: object) -> bytes:
        content = {**document["kernel"], **changes}
        return json.dumps({**document, "kernel": content, "sha256": digest(content)}).encode()

    return {
        "empty": b"", "cut": data[: len(data) // 2], "zeros": bytes(len(data)), "no object": b"[1, 2]",
        "not text": b"\xff\xfe\x00", "deep": b"[" * 100_000, "null": b'{"format": 1, "kernel": null, "sha256": ""}',
        "edited": data.replace(b"int x;", b"int y;"),
        "newer": json.dumps({**document, "format": 99}).encode(),
        "odd format": json.dumps({**document, "format": "1"}).encode(),
        "odd variant": with_content(variant={"operator": "relu"}),
        "odd schedule": with_content(schedule="[1]"),
        "odd speed-up": with_content(speedup=[1, 2]),
        "another kernel": with_content(source="int z;"),
        "too large": data + b" " * LARGEST_FILE,
    }  # fmt: skip


@pytest.mark.parametrize("kind", damage(b'{"kernel": {"variant": 1}}'))
def test_a_damaged_kernel_is_skipped_with_one_warning_and_can_be_removed(
    library: Library, make_kernel: Make, warnings: pytest.LogCaptureFixture, kind: str
) -> None:
    good, bad = make_kernel("int good;"), make_kernel("int x;", speedup=9.0)
    library.keep([good, bad])
    path = file_of(library, bad)
    path.write_bytes(damage(path.read_bytes())[kind])
    for _ in range(2):
        assert library.of(good.variant) == library.kernels() == (good,)
    assert [bad.id[:8] in record.getMessage() for record in warnings.records] == [True]
    with pytest.raises(ProjectError, match="cannot be read"):
        library.find(bad.id)
    assert library.keep([make_kernel("int more;")]) == 1
    assert library.remove([bad.id[:8]]) == 1
    assert bad.id not in {k.id for k in Library(library.folder).kernels()} and not path.exists()


def test_a_damaged_kernel_is_repaired_by_keeping_it_again(library: Library, make_kernel: Make) -> None:
    kernel = make_kernel()
    library.keep([kernel])
    file_of(library, kernel).write_bytes(b"{")
    library.keep([kernel])
    assert library.kernels() == (kernel,)


def test_other_files_and_folders_are_left_alone(library: Library, make_kernel: Make) -> None:
    kernel = make_kernel()
    library.keep([kernel])
    (library.folder / "notes.txt").write_text("mine")
    (library.folder / f"{'0' * 64}-{'1' * 64}.json").mkdir()
    assert library.kernels() == (kernel,)
    assert library.remove([kernel.id]) == 1
    assert (library.folder / "notes.txt").exists()


def test_what_cannot_be_written_is_a_warning(
    library: Library, make_kernel: Make, warnings: pytest.LogCaptureFixture
) -> None:
    infinite = Interval(median=float("inf"), low=1.0, high=float("inf"))
    kernels = [make_kernel("x" * LARGEST_FILE), make_kernel("int a;", speedup=2.0), make_kernel(dispatch=infinite)]
    assert library.keep(kernels) == 1
    assert [k.source for k in library.kernels()] == ["int a;"]
    assert len(warnings.records) == 2
    library.folder.rename(library.folder.with_name("away"))
    library.folder.write_text("no folder")
    assert library.keep([make_kernel()]) == 0
    assert library.of(make_kernel().variant) == ()


def test_leftovers_of_a_killed_writer_are_removed_later(library: Library, make_kernel: Make) -> None:
    library.keep([make_kernel()])
    old, young, users = (
        library.folder / f".{name}" for name in ("0123456789abcdef-x_1", "0123456789abcdef-y", "netrc")
    )
    for path in (old, young, users):
        path.write_bytes(b"")
    for path in (old, users):
        os.utime(path, (time.time() - 7200,) * 2)
    library.keep([make_kernel("int y;")])
    assert (old.exists(), young.exists(), users.exists()) == (False, True, True), "the folder may be somebody's"


def test_names_must_be_of_one_kernel_each(library: Library, make_kernel: Make) -> None:
    kernels = [make_kernel(f"int x{i};", origin=Origin(device="d", toolchain=str(i), torch="1")) for i in range(17)]
    library.keep(kernels)
    starts = [k.id[0] for k in kernels]
    twice = next(s for s in starts if starts.count(s) > 1)
    with pytest.raises(NotFound, match="is the start of"):
        library.remove([kernels[0].id, twice])
    with pytest.raises(NotFound, match="has no kernel"):
        library.remove([kernels[0].id, "x"])
    with pytest.raises(NotFound, match="has no kernel ''"):
        library.find("")
    assert len(library.kernels()) == 17, "all or nothing"
    assert library.remove([kernels[0].id, kernels[0].id.upper()]) == 1
    assert library.clear() == 16


WRITER = """
import sys
from pathlib import Path
from kernelforge.library.folder import Library
from kernelforge.library.serial import from_bytes
from dataclasses import replace
from kernelforge.benchmark.types import Interval

library, template, number = Library(Path(sys.argv[1])), from_bytes(Path(sys.argv[2]).read_bytes()), int(sys.argv[3])
for i in range(25):
    speedup = 1.0 + i + number / 10
    interval = Interval(median=speedup, low=speedup, high=speedup)
    own = replace(template, source=f"int x{number}_{i};", speedup=interval, dispatch=interval)
    shared = replace(template, source="int shared;", dispatch=replace(interval, median=100.0), model=f"m{number}")
    assert library.keep([own, shared]) == 2
    assert library.of(template.variant)
"""


def test_writers_at_once_lose_nothing_that_should_stay(library: Library, make_kernel: Make, tmp_path: Path) -> None:
    template = tmp_path / "template.json"
    template.write_bytes(to_bytes(make_kernel()))
    arguments = [sys.executable, "-W", "error", "-c", WRITER, str(library.folder)]
    writers = [
        subprocess.Popen([*arguments, str(template), str(number)], stderr=subprocess.PIPE, text=True)
        for number in range(4)
    ]
    for writer in writers:
        _, errors = writer.communicate(timeout=120)
        assert (writer.returncode, errors) == (0, "")
    kept = [(k.source, k.dispatch.median) for k in library.kernels()]
    assert kept == [("int shared;", 100.0), ("int x3_24;", 25.3), ("int x2_24;", 25.2)]
    assert len(list(library.folder.iterdir())) == BEST
