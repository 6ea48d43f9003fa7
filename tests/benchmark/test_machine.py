"""Facts of the machine that are read and not measured."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from kernelforge.benchmark import machine
from kernelforge.benchmark.machine import MachineFacts, known_facts, machine_facts
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
