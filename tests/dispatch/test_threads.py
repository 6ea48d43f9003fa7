"""Many threads at once: hits, misses, blocks that come and go, several packages, threads that end."""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from tests.dispatch.test_restoration import same, snapshot

from kernelforge.dispatch import eager
from kernelforge.dispatch.loading import LoadedPackage, load
from kernelforge.dispatch.patches import Origin, origin_at
from kernelforge.settings import Settings

MARK = 1 / 1024  # what each test kernel adds to its result
SECONDS = 60.0 if os.environ.get("KFORGE_LONG") else 2.0
THREADS = 8
LOST = 0.01
"""Counters are plain numbers; of counts that threads make at the same moment some may be lost: at most this share."""


class Wrong(AssertionError):
    pass


def either(result: torch.Tensor, plain: torch.Tensor) -> None:
    """Eager's result, or that of a kernel; nothing else."""
    if not torch.ops.aten.allclose(result, plain, 1e-5, 1e-6):
        shifted = torch.ops.aten.add.Scalar(plain, MARK)
        if not torch.ops.aten.allclose(result, shifted, 1e-5, 1e-6):
            raise Wrong("neither eager's result nor the kernel's")


def work(until: float, seed: int, enter: Callable[[], object], counts: dict[str, int]) -> None:
    """Calls of all kinds, inside and outside of blocks."""
    rng, aten = random.Random(seed), torch.ops.aten
    generator = torch.Generator().manual_seed(seed)
    while time.monotonic() < until:
        x = torch.rand(rng.randint(1, 70), 8, generator=generator)
        soft, wide = aten.softmax.int(x, 1), x.double()
        both, logged = aten.add.Tensor(x, x), aten.log.default(aten.add.Scalar(x, 1))
        plus = aten.add.Scalar(x, 1)
        with enter():  # type: ignore[attr-defined]
            either(F.softmax(x, 1), soft)
            either(torch.softmax(x, dim=1), soft)
            either(x.softmax(-1), soft)
            either(x + x, both)
            either(torch.log(plus), logged)
            if F.softmax(wide, 1).dtype is not torch.float64:
                raise Wrong("a kernel served another dtype")
            needed = torch.softmax(x.clone().requires_grad_(), 1)
            if not needed.requires_grad:
                raise Wrong("a gradient was dropped")
        counts["softmax"] += 3 * (len(x) <= 64)
        counts["calls"] += 1


def run_threads(targets: list[Callable[[], None]]) -> None:
    failures: list[BaseException] = []

    def guarded(target: Callable[[], None]) -> None:
        try:
            target()
        except BaseException as error:  # noqa: BLE001 - handed to the main thread
            failures.append(error)

    threads = [threading.Thread(target=guarded, args=(target,)) for target in targets]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


def test_threads_of_every_kind(write: Callable[..., Path], settings: Settings) -> None:
    """Outputs are always eager's or the kernel's, gradients flow, and at the end torch is what it was."""
    before = snapshot()
    path = write("softmax", "add", "log", "log_unaligned")
    first, second = load(path, settings=settings), load(path, settings=settings)
    with first.dispatch(), second.dispatch():
        pass  # the first time takes torch a second
    until = time.monotonic() + SECONDS
    counts: list[dict[str, int]] = [{"softmax": 0, "calls": 0} for _ in range(THREADS)]

    @contextmanager
    def nested() -> Iterator[None]:
        with first.dispatch(), second.dispatch(), first.dispatch():
            yield

    @contextmanager
    def nothing() -> Iterator[None]:
        yield

    blocks = [first.dispatch, second.dispatch, nested, nothing]

    def short_lived() -> None:
        """A thread after the other, each of which ends."""
        seed = 0
        while time.monotonic() < until:
            seed += 1
            run_threads([lambda s=seed: work(min(until, time.monotonic() + 0.05), s, first.dispatch, counts[7])])  # type: ignore[misc]

    targets: list[Callable[[], None]] = [
        lambda i=i: work(until, i, blocks[i % len(blocks)], counts[i])  # type: ignore[misc]
        for i in range(THREADS - 1)
    ]
    run_threads([*targets, short_lived])
    assert same(before)
    assert all(count["calls"] for count in counts)
    served = [sum(row.hits for row in package.stats()) for package in (first, second)]
    assert min(served) > 0
    x = torch.rand(4, 8)
    assert torch.equal(torch.softmax(x, 1), torch.ops.aten.softmax.int(x, 1))


def test_counts_of_many_threads_add_up(write: Callable[..., Path], settings: Settings) -> None:
    """Counters take no lock, and yet lose next to nothing."""
    package = load(write("softmax"), settings=settings)
    x, wide = torch.rand(4, 8), torch.rand(4, 8, dtype=torch.float64)
    calls = 4000 if SECONDS > 10 else 1000

    def target() -> None:
        for _ in range(calls):
            torch.softmax(x, 1)
            torch.softmax(wide, 1)

    with package.dispatch():
        run_threads([target] * THREADS)
    (row,) = package.stats()
    for count in (row.hits, row.misses["dtype"]):
        assert (1 - LOST) * THREADS * calls <= count <= THREADS * calls


def test_the_kill_switch_among_threads(write: Callable[..., Path], settings: Settings) -> None:
    package = load(write("softmax", "add"), settings=settings)
    until = time.monotonic() + SECONDS / 2
    counts = {"softmax": 0, "calls": 0}

    def switch() -> None:
        while time.monotonic() < until:
            package.enabled = not package.enabled
            time.sleep(0.001)

    run_threads([switch, *[lambda i=i: work(until, i, package.dispatch, counts) for i in range(3)]])
    package.enabled = True
    x = torch.rand(4, 8)
    with package.dispatch():
        result = torch.softmax(x, 1)
    torch.testing.assert_close(result, torch.softmax(x, 1) + MARK)


def test_one_signature_is_decided_once_and_for_all(write: Callable[..., Path], settings: Settings) -> None:
    """Threads that meet a signature at once may both decide it; whichever stays, the decision is the same."""
    package = load(write("softmax"), settings=settings)
    start = threading.Barrier(THREADS)
    results: list[torch.Tensor] = []
    x = torch.rand(4, 8)

    def target() -> None:
        start.wait()
        results.append(torch.softmax(x, 1))

    with package.dispatch():
        run_threads([target] * THREADS)
    want = torch.softmax(x, 1) + MARK
    for result in results:
        torch.testing.assert_close(result, want)


def test_a_block_that_begins_while_a_call_runs_leaves_the_call_alone(
    write: Callable[..., Path], settings: Settings
) -> None:
    """Entering and leaving among calls of another thread, for which the attributes change at any moment."""
    package = load(write("softmax"), settings=settings)
    before, x = snapshot(), torch.rand(4, 8)
    plain = torch.softmax(x, 1)
    stop = threading.Event()

    def call() -> None:
        while not stop.is_set():
            either(F.softmax(x, 1), plain)

    def come_and_go() -> None:
        for _ in range(200):
            with package.dispatch():
                pass
        stop.set()

    run_threads([call, call, come_and_go])
    assert same(before)


def test_packages_that_come_at_the_same_moment_do_not_lose_each_other(
    write: Callable[..., Path], settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that reads what is there before the other has put its wrapper would take that one away again."""
    before, path = snapshot(), write("softmax")

    def slow(owner: object, attribute: str) -> Origin:
        found = origin_at(owner, attribute)
        time.sleep(0.001)
        return found

    monkeypatch.setattr(eager, "origin_at", slow)
    x, start, inside = torch.rand(4, 8), threading.Barrier(2), threading.Barrier(2)
    packages = [load(path, settings=settings) for _ in range(2)]

    def come(package: LoadedPackage) -> None:
        start.wait()
        with package.dispatch():
            inside.wait()

    for _ in range(3):
        run_threads([lambda p=package: come(p) for package in packages])  # type: ignore[misc]
        assert same(before)
    with packages[0].dispatch():
        torch.softmax(x, 1)
    assert packages[0].stats()[0].hits == 1
