"""Facts of the machine that are read and not measured."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from kernelforge.benchmark import machine
from kernelforge.benchmark.machine import MachineFacts, beyond_cache, known_facts, machine_facts
from kernelforge.settings import load_settings

FACTS = MachineFacts(
    device="d", bandwidth=((64, 1e6), (1024, 5e5)), cache_bytes=64, dispatch_overhead_us=1.0, flops=(("float32", 1e9),)
)


def test_facts_are_known_once_they_were_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = replace(load_settings(), cache_dir=tmp_path / "cache")
    monkeypatch.setattr(machine, "_measure", lambda *_: FACTS)
    assert known_facts(settings, device="cpu", threads=3) is None
    assert not settings.cache_dir.exists(), "to look leaves nothing behind"
    machine_facts(settings, device="cpu", threads=3)
    assert known_facts(settings, device="cpu", threads=3) == FACTS
    assert known_facts(settings, device="cpu", threads=2) is None, "another number of threads has other facts"


def test_without_a_gpu_nothing_is_known_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert known_facts(load_settings(), device="cuda") is None


def test_beyond_a_cache_what_fits_comes_from_it() -> None:
    assert beyond_cache(100, 100, 8e12, 4e12) == pytest.approx(8e12)
    assert beyond_cache(50, 100, 8e12, 4e12) == pytest.approx(8e12)
    # Half at 8, half at 4 TB/s: 1 / (0.5/8 + 0.5/4) = 5.33 TB/s.
    assert beyond_cache(200, 100, 8e12, 4e12) == pytest.approx(16e12 / 3)
    assert beyond_cache(10**6, 100, 8e12, 4e12) == pytest.approx(4e12, rel=1e-3)


@pytest.mark.gpu
def test_bandwidth_of_a_gpu_by_footprint(tmp_path: Path) -> None:
    facts = machine_facts(replace(load_settings(), cache_dir=tmp_path), device="cuda", threads=1)
    cache = facts.cache_bytes
    memory, cached = facts.bytes_per_second(64 * cache), facts.bytes_per_second(cache // 2)
    assert 1.2 * memory < cached < 4 * memory, "an L2 is faster than the memory, not by any factor"
    rates = [rate for _, rate in facts.bandwidth]
    assert rates == sorted(rates, reverse=True)
    for size in (cache // 4, 32 * cache):
        tensor = torch.ones(size // 4, dtype=torch.float32, device="cuda")
        assert 2 * size / facts.bytes_per_second(size) < seconds(tensor.relu_), "a bound: it is read and written"


def seconds(job: Callable[[], object]) -> float:
    """Of a call between two events, the best of ten."""
    times = []
    for _ in range(10):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        begin.record()
        job()
        end.record()
        torch.cuda.synchronize()
        times.append(float(begin.elapsed_time(end)) / 1e3)
    return min(times)
