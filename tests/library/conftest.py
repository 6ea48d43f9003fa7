"""A library in a folder of its own, and made-up kernels for it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import pytest

from kernelforge.benchmark.types import Interval
from kernelforge.capture.types import TensorRef
from kernelforge.cards.types import Dim, Extent, TensorPattern, Variant
from kernelforge.library.folder import Library
from kernelforge.library.proposals import torch_minor
from kernelforge.library.types import Origin, StoredKernel, abi_of

PRELUDE = "// a prelude\nextern int launch();\n"
BRIEF = "a compiler 12; target x86-64-v3"


@pytest.fixture
def library(tmp_path: Path) -> Library:
    return Library(tmp_path / "library")


@pytest.fixture
def variant() -> Variant:
    pattern = TensorPattern(shape=(Extent(1, ("n0",)), Extent(8)), stride=(Extent(8), Extent(1)), dtype="float32")
    return Variant(
        operator="relu", arguments=(("input", TensorRef(0)),), tensors=(pattern,), outputs=(pattern,),
        dims=(Dim(name="n0", low=1, high=64),),
    )  # fmt: skip


@pytest.fixture
def make_kernel(variant: Variant) -> Callable[..., StoredKernel]:
    """A kernel of this machine, unless told otherwise."""

    def make(source: str = "int x;", speedup: float = 2.0, **changes: object) -> StoredKernel:
        interval = Interval(median=speedup, low=0.9 * speedup, high=1.1 * speedup)
        values: dict[str, object] = {
            "variant": variant, "least_elements": 0, "source": source, "backend": "cpp", "abi": abi_of(PRELUDE),
            "generator": "template", "notes": "8 threads", "schedule": '{"threads":8}', "language_model": "",
            "model": "Tiny", "origin": Origin(device="x86-64-v3", toolchain=BRIEF, torch=torch_minor()),
            "speedup": interval, "dispatch": interval, "certified": 1.0e9,
        }  # fmt: skip
        return StoredKernel(**{**values, **changes})  # type: ignore[arg-type]

    return make


@pytest.fixture
def warnings(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> pytest.LogCaptureFixture:
    """What is logged; a command line that ran before in this process may keep it to itself."""
    monkeypatch.setattr(logging.getLogger("kernelforge"), "propagate", True)
    return caplog
