"""Loading: what is on, what is off and why, and that a damaged binary never runs."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from kernelforge.cards.types import Variant
from kernelforge.dispatch.decide import Admitted, Refused
from kernelforge.dispatch.loading import LoadedPackage, load
from kernelforge.dispatch.machine import Machine, cpu_targets, why_off
from kernelforge.errors import NotFound
from kernelforge.package.types import Entry, Header, Off
from kernelforge.settings import Settings

HERE = Machine(cpu_targets=("x86-64", "x86-64-v2"), capabilities=("sm_90",), device_names=("H200",), torch="2.13.0")
HEADER = Header(name="m", device="cpu", torch="2.13.1", created_by="test")


def states(package: LoadedPackage) -> list[str]:
    return [row.state for row in package.stats()]


def test_explain_says_which_entry_or_why_none(make: Callable[..., LoadedPackage], x: torch.Tensor) -> None:
    package = make()
    answer = package.explain("softmax", x, dim=-1)
    assert isinstance(answer, Admitted)
    assert (answer.entry.variant.operator, answer.dims) == ("softmax", {"n0": 4})
    refused = package.explain("softmax", x.double(), -1)
    assert isinstance(refused, Refused)
    assert (refused.term, refused.detail) == ("dtype", "dtype of input: float64, not float32")
    closest = package.explain("softmax", torch.rand(65, 8), -1)
    assert isinstance(closest, Refused)
    assert closest.term == "dim"
    unknown = package.explain("gelu", x)
    assert isinstance(unknown, Refused)
    assert unknown.term == "operator"
    with torch.autocast("cpu"):
        cast = package.explain("softmax", x, -1)
    assert isinstance(cast, Refused)
    assert cast.term == "autocast"
    with pytest.raises(NotFound):
        package.explain("no_such_operator", x)


def test_explain_of_missing_arguments_names_the_function(make: Callable[..., LoadedPackage]) -> None:
    refused = make().explain("exp")
    assert isinstance(refused, Refused)
    assert refused.detail.endswith(": exp() missing 1 required positional argument: 'input'")


def test_what_a_package_tells_is_readable(make: Callable[..., LoadedPackage], x: torch.Tensor) -> None:
    package = make()
    (state,) = [s for s in package.states if s.entry.variant.operator == "softmax"]
    label = state.entry.variant.label
    with torch.no_grad(), package.dispatch():
        torch.softmax(x, -1)
        torch.softmax(x.double(), -1)
    lines = str(package.stats()).splitlines()
    assert lines[0].split() == ["kernel", "hits", "misses", "state"]
    assert f"{label} 1 1 on; 1 by dtype" in {" ".join(line.split()) for line in lines}
    (row,) = [r for r in package.stats() if r.operator == "softmax"]
    assert str(row) == f"{label}: on, 1 hit, 1 miss (dtype 1)"
    assert isinstance(package.stats(), tuple) and isinstance(package.states, tuple)
    assert f"{label}: on" in str(package.states).splitlines()
    assert repr(state) == f"<EntryState {label}: on>"
    served = package.explain("softmax", x, dim=-1)
    assert (str(served), repr(served)) == (f"served by {label} at n0=4", f"<Admitted: served by {label} at n0=4>")
    refused = package.explain("softmax", x.double(), -1)
    assert str(refused) == "not served: dtype of input: float64, not float32"


def test_the_kill_switch(write: Callable[..., Path], settings: Settings, x: torch.Tensor) -> None:
    package = load(write("softmax"), settings=replace(settings, disabled=True))
    original = torch.softmax
    with package.dispatch():
        assert torch.softmax is original
    assert states(package) == ["disabled by KFORGE_DISABLE"]


def test_an_entry_that_was_decided_against_is_off(
    write: Callable[..., Path], settings: Settings, entries: Mapping[str, Entry], x: torch.Tensor
) -> None:
    slow = replace(entries["softmax"], decisions={"eager": Off(reason="not faster than eager")})
    package = load(write(slow, "add"), settings=settings)
    with package.dispatch():
        torch.softmax(x, 1)
    assert sorted(states(package)) == ["not faster than eager", "on"]


def test_another_torch_minor_turns_all_off_with_one_warning(
    write: Callable[..., Path], settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    package = load(write("softmax", "add", torch_version="1.2.3"), settings=settings)
    assert all("judged under torch 1.2.3" in state for state in states(package))
    (record,) = caplog.records
    assert "2 of 2 kernels are off here (100% of the expected gain)" in record.getMessage()


def test_a_binary_that_does_not_load_is_off(
    write: Callable[..., Path], settings: Settings, entries: Mapping[str, Entry], x: torch.Tensor
) -> None:
    from kernelforge.digest import digest_bytes

    entry = entries["softmax"]
    data = b"no shared object"
    broken = replace(entry, binaries=(replace(entry.binary, data=data, digest=digest_bytes(data)),))
    package = load(write(broken, "add"), settings=settings)
    assert [s.startswith("does not load") for s in states(package)] == [False, True]
    with package.dispatch():
        assert torch.equal(torch.softmax(x, 1), x.softmax(1))


def test_a_binary_changed_in_the_cache_is_replaced(write: Callable[..., Path], settings: Settings) -> None:
    path = write("log")
    package = load(path, settings=settings)
    (cached,) = (settings.cache_dir / "packages").glob(f"{package.states[0].entry.binary.digest}*")
    assert cached.parent.stat().st_mode & 0o077 == 0
    good = cached.read_bytes()
    cached.unlink()  # not written over: this process has it mapped
    cached.write_bytes(b"changed")
    assert states(load(path, settings=settings)) == ["on"]
    assert cached.read_bytes() == good


def entry_for(entries: Mapping[str, Entry], *, target: str, device: str = "cpu", capability: str = "") -> Entry:
    entry = entries["softmax"]
    variant: Variant = replace(entry.variant, device=device, capability=capability)
    return replace(entry, variant=variant, binaries=(replace(entry.binary, target=target),))


def test_what_a_machine_can_run(entries: Mapping[str, Entry]) -> None:
    on_cpu = entry_for(entries, target="x86-64-v2")
    assert why_off(on_cpu, HEADER, HERE) == ""
    assert "x86-64-v4" in why_off(entry_for(entries, target="x86-64-v4"), HEADER, HERE)
    assert "aarch64" in why_off(entry_for(entries, target="aarch64"), HEADER, HERE)
    on_gpu = entry_for(entries, target="sm_90", device="cuda", capability="sm_90")
    assert why_off(on_gpu, HEADER, HERE) == ""
    assert "there is none" in why_off(on_gpu, HEADER, replace(HERE, capabilities=(), device_names=()))
    assert "there is sm_80" in why_off(on_gpu, HEADER, replace(HERE, capabilities=("sm_80",)))
    assert "judged on GB10" in why_off(on_gpu, replace(HEADER, device_name="GB10"), HERE)
    assert "certify" in why_off(on_cpu, replace(HEADER, torch="2.12.0"), HERE)


def test_cpu_levels_need_every_flag_of_the_levels_below() -> None:
    v3 = frozenset({"sse4_2", "ssse3", "popcnt", "cx16", "avx2", "bmi1", "bmi2", "f16c", "fma", "movbe"})
    assert cpu_targets("x86_64", v3)[-1] == "x86-64-v3"
    assert cpu_targets("x86_64", v3 - {"popcnt"}) == ("x86-64",)
    assert cpu_targets("aarch64", frozenset()) == ("aarch64",)


def test_the_run_time_imports_nothing_of_the_stages_that_make_packages() -> None:
    code = (
        "import sys, kernelforge.dispatch.loading, kernelforge.dispatch.eager\n"
        "stages = 'generate build verify benchmark audit evaluate search store executors runner report'.split()\n"
        "print([s for s in stages if f'kernelforge.{s}' in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_repr_is_one_short_line(write: Callable[..., Path], settings: Settings, entries: Mapping[str, Entry]) -> None:
    off = replace(entries["softmax"], decisions={"eager": Off(reason="not faster than eager")})
    path = write(off, "add")
    assert repr(load(path, settings=settings)) == f"<LoadedPackage {str(path)!r}: 2 kernels, 1 on>"
    assert repr(load(write("add"), settings=settings)).endswith(": 1 kernel, 1 on>")
