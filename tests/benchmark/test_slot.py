"""One slot for each physical device."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from kernelforge.benchmark.clock import environment
from kernelforge.benchmark.machine import MachineFacts
from kernelforge.benchmark.slot import physical_gpu, timing_slot
from kernelforge.errors import DeviceBusy
from kernelforge.settings import Settings, load_settings


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.setattr("kernelforge.benchmark.slot.TIMEOUT_S", 0.1)
    return replace(load_settings(), cache_dir=tmp_path)


def show(monkeypatch: pytest.MonkeyPatch, uuid: str) -> None:
    """What a process sees as its first GPU."""
    properties = SimpleNamespace(uuid=uuid, major=9, minor=0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _index: properties)


def test_timings_of_two_gpus_run_beside_each_other_those_of_one_do_not(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    show(monkeypatch, "1111")
    assert physical_gpu(0) == "GPU-1111"
    with timing_slot(settings, "cuda"):
        with pytest.raises(DeviceBusy), timing_slot(settings, "cuda"):
            pass
        show(monkeypatch, "2222")
        with timing_slot(settings, "cuda"), timing_slot(settings, "cpu"):
            pass


def test_the_cpu_has_one_slot(settings: Settings) -> None:
    with timing_slot(settings, "cpu"), pytest.raises(DeviceBusy), timing_slot(settings, "cpu"):
        pass


def test_the_clocks_beside_a_measurement_are_those_of_the_gpu_that_is_timed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text('#!/bin/sh\necho "$@"\n')
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    show(monkeypatch, "2222")
    facts = MachineFacts(device="d", bandwidth=((1, 1e9),), cache_bytes=64, dispatch_overhead_us=1.0)
    told = environment(facts, device="cuda", threads=1, torch_version="2")
    assert told["gpu"] == "GPU-2222"
    assert told["gpu_clocks"].endswith("--id=GPU-2222")
