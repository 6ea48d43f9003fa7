"""A kernel that fails is named, raises, and is off in the next process; what is uncertain is called so."""

from __future__ import annotations

import logging
import stat
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from kernelforge.dispatch.failures import Failures, sticky_code
from kernelforge.dispatch.loading import LoadedPackage, load
from kernelforge.dispatch.machine import Machine
from kernelforge.dispatch.quarantine import Quarantine, Quarantined
from kernelforge.errors import EnvironmentMissing, ForgeError, NotFound
from kernelforge.package.types import Entry
from kernelforge.settings import Settings

Make = Callable[..., LoadedPackage]
HERE = Machine(
    cpu_targets=("x86-64",), capabilities=("sm_90", "sm_90"), device_names=("H200", "H100"), torch="2.13.0",
    driver="580.65.06",
)  # fmt: skip


def add(quarantine: Quarantine, binary: str = "b1", *, machine: Machine = HERE, device: str = "H200") -> Quarantined:
    return quarantine.add(
        binary, device=device, machine=machine, kernel="softmax-1a2b3c4d", package="m.cast", error=700, certain=True
    )


def test_a_failed_launch_is_off_at_the_next_load(make: Make, settings: Settings, x: torch.Tensor) -> None:
    """One bad kernel must not fail again at every start; see antirez/ds4#759, NVIDIA/cuml#7906."""
    package, want = make("exp", "softmax"), x.exp()
    (entry,) = [e for e in package.package.entries if e.variant.operator == "exp"]
    with package.dispatch(), pytest.raises(ForgeError, match="failed with error 7") as failed:
        x.exp()
    assert entry.variant.label in str(failed.value)
    assert str(package.package.path) in str(failed.value)
    (record,) = Quarantine(settings.cache_dir).list()
    assert (record.binary, record.kernel, record.error) == (entry.binary.digest, entry.variant.label, 7)
    assert (record.device, record.package, record.certain) == ("cpu", str(package.package.path), True)
    assert record.key in failed.value.hint or record.key[:8] in failed.value.hint
    again = make("exp", "softmax")
    states = {s.entry.variant.operator: s.reason for s in again.states}
    assert states["softmax"] == ""
    assert (
        states["exp"]
        == f"quarantined: error 7 on {record.date}; clear with kforge cast quarantine clear {record.key[:8]}"
    )
    assert states["exp"] in str(again.stats())
    with again.dispatch():
        torch.testing.assert_close(x.exp(), want)
        torch.softmax(x, 1)
    Quarantine(settings.cache_dir).clear(record.key[:8])
    assert all(s.reason == "" for s in make("exp", "softmax").states)


def test_another_build_of_the_kernel_is_not_off(
    write: Callable[..., Path], settings: Settings, entries: Mapping[str, Entry], x: torch.Tensor
) -> None:
    Quarantine(settings.cache_dir).add(
        "0" * 64, device="cpu", machine=HERE, kernel=entries["softmax"].variant.label, package="", error=1, certain=True
    )
    assert load(write("softmax"), settings=settings).states[0].reason == ""


def test_a_record_is_for_one_device_torch_and_driver(tmp_path: Path) -> None:
    quarantine = Quarantine(tmp_path)
    kept = add(quarantine)
    assert quarantine.find("b1", device="H200", machine=HERE) == kept
    assert quarantine.find("b1", device="H200", machine=replace(HERE, torch="2.13.1+cu130")) == kept
    assert quarantine.find("b2", device="H200", machine=HERE) is None
    assert quarantine.find("b1", device="H100", machine=HERE) is None
    assert quarantine.find("b1", device="H200", machine=replace(HERE, torch="2.14.0")) is None
    assert quarantine.find("b1", device="H200", machine=replace(HERE, driver="590.10")) is None


def test_records_are_private_and_whole(tmp_path: Path) -> None:
    quarantine = Quarantine(tmp_path)
    threads = [threading.Thread(target=add, args=(quarantine,)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (path,) = (tmp_path / "quarantine").iterdir()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert quarantine.list()[0].kernel == "softmax-1a2b3c4d"


@pytest.mark.parametrize("content", ["", "[]", '{"binary": 3}', "[" * 100_000, "\x00"])
def test_a_damaged_record_still_counts(tmp_path: Path, content: str) -> None:
    quarantine = Quarantine(tmp_path)
    (tmp_path / "quarantine" / f"{add(quarantine).key}.json").write_text(content)
    found = quarantine.find("b1", device="H200", machine=HERE)
    assert found is not None
    assert "a record that cannot be read" in str(found)
    assert len(quarantine.clear("")) == 1
    assert quarantine.list() == ()


def test_clearing_takes_unique_prefixes(tmp_path: Path) -> None:
    quarantine = Quarantine(tmp_path)
    assert quarantine.clear("") == ()
    keys = [add(quarantine, f"b{i}").key for i in range(40)]
    shared = next(k[0] for k in keys if sum(other[0] == k[0] for other in keys) > 1)
    with pytest.raises(NotFound, match="records begin"):
        quarantine.clear(shared)
    with pytest.raises(NotFound, match="no record begins"):
        quarantine.clear("x")
    assert [q.key for q in quarantine.clear(keys[3])] == [keys[3]]
    assert len(quarantine.list()) == 39


def test_a_folder_that_cannot_be_written_hides_no_failure(
    tmp_path: Path, entries: Mapping[str, Entry], caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "quarantine").write_text("a file where the folder should be")
    with pytest.raises(EnvironmentMissing, match="cannot be kept"):
        add(Quarantine(tmp_path))
    error = Failures(Quarantine(tmp_path), HERE, package="m.cast").launch_failed(entries["exp"], "b1", 1)
    assert "failed with error 1" in str(error)
    assert "cannot be kept" in caplog.text


@pytest.mark.parametrize(("code", "blocking", "kept"), [
    (1, False, True), (700, False, False), (700, True, True), (2, False, None), (901, False, None),
])  # fmt: skip
def test_only_what_is_sure_is_called_sure(
    tmp_path: Path, entries: Mapping[str, Entry], code: int, blocking: bool, kept: bool | None
) -> None:
    """A fault of the device may be an earlier kernel's, unless launches wait for their end; that memory is short, or
    that others broke a capture, is no kernel's fault at all."""
    failures = Failures(Quarantine(tmp_path), HERE, package="m.cast", blocking=blocking)
    error = failures.launch_failed(entries["exp"], "b1", code, device=1)
    records = Quarantine(tmp_path).list()
    assert [r.certain for r in records] == ([] if kept is None else [kept])
    assert [r.device for r in records] == ([] if kept is None else ["H100"])
    doubtful = kept is False
    assert ("An earlier kernel may have caused it" in error.message) == doubtful
    assert ("CUDA_LAUNCH_BLOCKING=1" in error.hint) == doubtful
    assert ("which another kernel may have caused" in error.hint) == doubtful


class DeviceFault(RuntimeError):
    """As torch.AcceleratorError, which only torch can fill in."""

    def __init__(self, text: str, code: int | None = None) -> None:
        super().__init__(text)
        if code is not None:
            self.error_code = code


ILLEGAL = "CUDA error: an illegal memory access was encountered\nCUDA kernel errors might be asynchronously reported"


@pytest.mark.parametrize(("error", "code"), [
    (DeviceFault("CUDA error: whatever", 719), 719), (RuntimeError(ILLEGAL), 700), (DeviceFault("x", 2), None),
    (RuntimeError("an illegal memory access was encountered"), None), (RuntimeError("CUDA error: out of memory"), None),
])  # fmt: skip
def test_which_errors_are_of_the_device(error: RuntimeError, code: int | None) -> None:
    assert sticky_code(error) == code


def test_a_fault_that_shows_later_names_suspects_and_blames_none(
    make: Make, settings: Settings, x: torch.Tensor
) -> None:
    package = make("softmax", "log", "exp")
    labels = {e.variant.operator: e.variant.label for e in package.package.entries}
    with package.dispatch():
        (x.abs() + 1).log()  # in an earlier block
    with pytest.raises(RuntimeError, match="illegal memory access") as caught, package.dispatch():
        torch.softmax(x, 1)
        torch.softmax(x, 1)
        raise RuntimeError(ILLEGAL)
    (note,) = caught.value.__notes__
    assert f"{labels['softmax']} (2 launches)" in note
    assert labels["log"] not in note and labels["exp"] not in note
    assert "or none" in note
    with pytest.raises(RuntimeError) as alone, package.dispatch():
        raise RuntimeError(ILLEGAL)
    assert "none of its kernels had run" in alone.value.__notes__[0]
    with pytest.raises(RuntimeError) as other, package.dispatch():
        torch.softmax(x, 1)
        raise RuntimeError("of the model itself")
    assert not hasattr(other.value, "__notes__")
    assert Quarantine(settings.cache_dir).list() == ()


def test_a_load_with_quarantined_kernels_says_so_once(
    make: Make, x: torch.Tensor, caplog: pytest.LogCaptureFixture
) -> None:
    with make("exp").dispatch(), pytest.raises(ForgeError):
        x.exp()
    with caplog.at_level(logging.WARNING):
        make("exp")
    assert sum("quarantined: error 7" in record.getMessage() for record in caplog.records) == 1
