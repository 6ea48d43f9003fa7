"""What a machine can run, and where a verdict holds: torch's minor version, the GPU's name, the driver's branch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from kernelforge.dispatch.inactive import expected_gain, inactive
from kernelforge.dispatch.loading import load
from kernelforge.dispatch.machine import (
    Machine,
    binary_for,
    cannot_run,
    driver_branch,
    driver_version,
    this_machine,
    torch_minor,
    uncertified,
    why_off,
)
from kernelforge.dispatch.records import environments
from kernelforge.package.types import Decision, Entry, Header, Off, Use
from kernelforge.settings import Settings

HERE = Machine(
    cpu_targets=("x86-64", "x86-64-v2", "x86-64-v3"), capabilities=("sm_90",), device_names=("NVIDIA H200",),
    torch="2.13.0", driver="580.65.06", cpu="a CPU",
)  # fmt: skip
MADE = Header(
    name="m", device="cuda", torch="2.13.1+cu130", created_by="test", device_name="NVIDIA H200", driver="580.95.05"
)


@pytest.fixture
def on_gpu(entries: Mapping[str, Entry]) -> Entry:
    entry = entries["softmax"]
    variant = replace(entry.variant, device="cuda", capability="sm_90")
    return replace(entry, variant=variant, binaries=(replace(entry.binary, target="sm_90"),))


@pytest.mark.parametrize(
    ("here", "header", "reason"),
    [
        (HERE, MADE, ""),
        (HERE, replace(MADE, torch="2.13.9"), ""),
        (HERE, replace(MADE, torch="2.12.0"), "judged under torch 2.12.0, this is 2.13.0"),
        (HERE, replace(MADE, device_name="NVIDIA H100"), "judged on NVIDIA H100, this is NVIDIA H200"),
        # Releases of one branch come every week with a system's updates; branches launch and clock differently.
        (HERE, replace(MADE, driver="580.1.1"), ""),
        (HERE, replace(MADE, driver="590.44.01"), "judged under driver 590.44.01, this is 580.65.06"),
        (HERE, replace(MADE, driver=""), ""),
        (replace(HERE, driver=""), MADE, ""),
    ],
)
def test_where_a_verdict_holds(on_gpu: Entry, here: Machine, header: Header, reason: str) -> None:
    found = uncertified(on_gpu, header, here)
    assert found == (f"{reason}: certify it again" if reason else "")
    assert why_off(on_gpu, header, here) == found


def test_a_driver_is_no_matter_of_the_cpu(entries: Mapping[str, Entry]) -> None:
    header = replace(MADE, device="cpu", device_name="", driver="1.2")
    assert uncertified(entries["softmax"], header, HERE) == ""


def test_what_cannot_run_does_not_ask_to_be_certified(on_gpu: Entry) -> None:
    older = replace(HERE, capabilities=("sm_80",), device_names=("NVIDIA A100",))
    assert why_off(on_gpu, replace(MADE, torch="2.12.0"), older) == "needs sm_90; there is sm_80"
    assert cannot_run(on_gpu, replace(HERE, capabilities=(), device_names=())) == "needs a CUDA device; there is none"


def test_the_best_of_several_binaries(entries: Mapping[str, Entry]) -> None:
    entry = entries["softmax"]
    levels = ("x86-64", "x86-64-v3", "x86-64-v4")
    several = replace(entry, binaries=tuple(replace(entry.binary, target=t, digest=t) for t in levels))
    chosen = binary_for(several, HERE)
    assert chosen is not None and chosen.target == "x86-64-v3"
    assert binary_for(replace(entry, binaries=several.binaries[2:]), HERE) is None
    assert "x86-64-v4" in cannot_run(replace(entry, binaries=several.binaries[2:]), HERE)


def test_versions() -> None:
    assert [torch_minor(v) for v in ("2.13.0", "2.13.1+cu130", "3.0.0a0+git1")] == ["2.13", "2.13", "3.0"]
    assert [driver_branch(v) for v in ("580.65.06", "", "580")] == ["580", "", "580"]


def test_this_machine_is_described() -> None:
    machine = this_machine()
    assert machine.cpu_targets and torch_minor(machine.torch)
    assert bool(machine.driver) <= bool(machine.capabilities)
    assert len(environments("cpu", machine)) == 1
    assert len(environments("cuda", machine)) == len(set(machine.device_names))


def test_no_management_library_means_no_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    import ctypes

    def missing(name: str) -> object:
        raise OSError(name)

    monkeypatch.setattr(ctypes, "CDLL", missing)
    assert driver_version() == ""


def test_a_record_of_one_environment_is_not_anothers() -> None:
    (here,) = environments("cuda", HERE)
    changed = [
        replace(HERE, torch="2.14.0"), replace(HERE, driver="590.1"), replace(HERE, device_names=("NVIDIA H100",)),
        replace(HERE, capabilities=("sm_100",)),
    ]  # fmt: skip
    keys = {environments("cuda", machine)[0].key for machine in changed}
    assert here.key not in keys and len(keys) == len(changed)
    same = [replace(HERE, torch="2.13.4"), replace(HERE, driver="580.1"), replace(HERE, cpu="another CPU")]
    assert {environments("cuda", machine)[0].key for machine in same} == {here.key}
    twice = replace(HERE, capabilities=("sm_90",) * 2, device_names=("NVIDIA H200",) * 2)
    assert environments("cuda", twice) == (here,)


def test_the_share_that_is_inactive_counts_what_is_used_in_any_mode(
    write: Callable[..., Path], settings: Settings, entries: Mapping[str, Entry]
) -> None:
    def measured(name: str, share: float, mode: str, median: float) -> Entry:
        block = {"speedup": {"median": median, "low": median, "high": median}}
        decisions: dict[str, Decision] = {"eager": Off(reason="slower"), "compiled": Off(reason="slower"), mode: Use()}
        return replace(entries[name], share=share, measurement={"modes": {mode: block}}, decisions=decisions)

    half, third = measured("softmax", 0.3, "compiled", 2.0), measured("add", 0.1, "eager", 4.0)
    assert [expected_gain(half), expected_gain(third)] == pytest.approx([0.15, 0.075])
    off = replace(entries["log"], decisions={"eager": Off(reason="slower")}, share=0.5)
    package = load(write(half, third, off), settings=settings)
    machine = this_machine()
    assert inactive(package.package, package.states, machine, ()) is None
    broken = [replace(s, kernel=None, reasons=dict.fromkeys(("eager", "graphed", "compiled"), "does not load: x"))
              if s.entry.variant.operator == "softmax" else s for s in package.states]  # fmt: skip
    found = inactive(package.package, broken, machine, ())
    assert found is not None
    assert (found.wanted, found.reasons, found.waiting, found.command) == (2, ("does not load: x",), 0, "")
    assert found.share == pytest.approx(2 / 3)
    assert "1 of 2 kernels are off here (67% of the expected gain): does not load: x (1)" in str(found)
