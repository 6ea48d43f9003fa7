"""One launch before an entry serves: at its least sizes, with bounded memory, and with words for what goes wrong."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest
import torch

from kernelforge.cards.types import Dim, Extent, TensorPattern
from kernelforge.dispatch import first_launch
from kernelforge.dispatch.first_launch import SickDevice, launch_once, least_dims
from kernelforge.dispatch.loading import LoadedPackage
from kernelforge.dispatch.types import Kernel
from kernelforge.package.types import Entry

CPU = [torch.device("cpu")]


class Spy:
    """Stands in for a binary."""

    def __init__(self, status: int = 0, workspace_bytes: int = 0) -> None:
        self.status, self.calls = status, []  # type: ignore[var-annotated]
        self.kernel = Kernel(launch=self.launch, address=0, workspace_bytes=lambda dims: workspace_bytes)

    def launch(self, *args: object) -> int:
        self.calls.append(args)
        return self.status


def test_every_kernel_is_launched_at_its_least_sizes(make: Callable[..., LoadedPackage]) -> None:
    """In-place ones, shared memory, workspaces and scalars too; the guard in the binary admits what is drawn."""
    package = make()
    for state in package.states:
        assert state.kernel is not None
        calls: list[int] = []

        def launch(*args: object, kernel: Kernel = state.kernel, seen: list[int] = calls) -> int:
            seen.append(kernel.launch(*args))
            return seen[-1]

        failed = launch_once(state.entry, replace(state.kernel, launch=launch), CPU)
        if state.entry.variant.operator == "exp":
            assert (failed, calls) == ("its first launch failed with error 7", [-7])
        else:
            assert (failed, calls) == ("", [0])


def test_inputs_are_small_and_zero(entries: Mapping[str, Entry]) -> None:
    spy = Spy()
    assert launch_once(entries["linear"], spy.kernel, CPU) == ""
    ((x, weight, out, workspace, stream),) = spy.calls
    assert (x.shape, weight.shape, out.shape, workspace, stream) == ((1, 8), (8, 8), (1, 8), 0, 0)
    assert not x.any() and not weight.any()


def test_an_aligned_workspace_is_given(entries: Mapping[str, Entry]) -> None:
    spy = Spy(workspace_bytes=100)
    launch_once(entries["mul"], spy.kernel, CPU)
    ((_, _, scalar, address, _),) = spy.calls
    assert (scalar, address % 256, address > 0) == (0.5, 0, True)


def test_what_needs_too_much_memory_is_left_for_the_first_call(
    entries: Mapping[str, Entry], caplog: pytest.LogCaptureFixture
) -> None:
    spy = Spy(workspace_bytes=first_launch.MAX_BYTES + 1)
    with caplog.at_level(logging.INFO, logger=first_launch.__name__):
        assert launch_once(entries["softmax"], spy.kernel, CPU) == ""
    assert spy.calls == []
    assert entries["softmax"].variant.label in caplog.text


def test_least_sizes_follow_the_guard(entries: Mapping[str, Entry]) -> None:
    variant = entries["softmax"].variant
    assert least_dims(variant) == {"n0": 1}
    assert least_dims(replace(variant, dims=(Dim(name="n0", low=3, high=64, multiple_of=4),))) == {"n0": 4}
    large = replace(variant, min_elements=300)
    dims = least_dims(large)
    assert dims is not None
    assert large.admits_dims(dims)
    two = Extent(1, ("n0", "n1"))
    square = TensorPattern(shape=(two,), stride=(Extent(1),), dtype="float32")
    both = replace(
        variant, tensors=(square,), outputs=(square,), min_elements=4000,
        dims=(Dim(name="n0", low=1, high=64), Dim(name="n1", low=1, high=64)),
    )  # fmt: skip
    dims = least_dims(both)
    assert dims is not None
    assert both.admits_dims(dims)
    assert least_dims(replace(variant, min_elements=10**9)) is None


def test_an_error_of_the_launch_turns_the_entry_off(entries: Mapping[str, Entry]) -> None:
    assert launch_once(entries["softmax"], Spy(-98).kernel, CPU) == "its first launch failed with error 98"
    assert launch_once(entries["softmax"], Spy(1).kernel, CPU) == ""  # refused, so not launched; that is no failure

    def broken(*args: object) -> int:
        raise RuntimeError("out of memory\nand more")

    kernel = replace(Spy().kernel, launch=broken)
    assert launch_once(entries["softmax"], kernel, CPU) == "its first launch failed: out of memory"


def test_a_device_that_breaks_is_no_reason_but_an_error(entries: Mapping[str, Entry]) -> None:
    def illegal(*args: object) -> int:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    with pytest.raises(SickDevice) as caught:
        launch_once(entries["softmax"], replace(Spy().kernel, launch=illegal), CPU)
    assert caught.value.code == 700
