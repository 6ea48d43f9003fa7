"""A judge on the CPU, and the variants that handwritten candidates are put before it for."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeAlias

import pytest

from kernelforge.benchmark.protocol import Protocol
from kernelforge.build.backends import get_backend
from kernelforge.build.types import Backend
from kernelforge.capture.types import TensorRef
from kernelforge.cards.examples import ExampleStore
from kernelforge.cards.types import Dim, Extent, SizePoint, TensorPattern, Variant, VariantRecord
from kernelforge.evaluate.judge import Judge
from kernelforge.evaluate.types import Outcome
from kernelforge.executors.types import Limits
from kernelforge.generate.types import Candidate
from kernelforge.settings import Settings, load_settings

Evaluate: TypeAlias = "Callable[[VariantRecord, str], Outcome]"


def contiguous(*shape: Extent, dtype: str = "float32") -> TensorPattern:
    """A row-major pattern."""
    stride, step = [], Extent(1)
    for size in reversed(shape):
        stride.append(step)
        step = step.times(size)
    return TensorPattern(shape=shape, stride=tuple(reversed(stride)), dtype=dtype)


def record_of(variant: Variant, **sizes: int) -> VariantRecord:
    point = SizePoint(dims=sizes, scalars={}, calls=3, eager_us=20.0)
    return VariantRecord(variant=variant, points=(point,), share=0.5)


@pytest.fixture
def softmax_record() -> VariantRecord:
    """softmax over the last axis of [n0, n1]."""
    pattern = contiguous(Extent(1, ("n0",)), Extent(1, ("n1",)))
    variant = Variant(
        operator="softmax", arguments=(("input", TensorRef(0)), ("dim", 1), ("dtype", None)),
        tensors=(pattern,), outputs=(pattern,),
        dims=(Dim(name="n0", low=1, high=256), Dim(name="n1", low=1, high=512)),
    )  # fmt: skip
    return record_of(variant, n0=64, n1=100)


@pytest.fixture
def relu_record() -> VariantRecord:
    """relu of a fixed [4, 1000]."""
    pattern = contiguous(Extent(4), Extent(1000))
    variant = Variant(
        operator="relu", arguments=(("input", TensorRef(0)), ("inplace", False)), tensors=(pattern,), outputs=(pattern,)
    )
    return record_of(variant)


@pytest.fixture
def inplace_relu_record(relu_record: VariantRecord) -> VariantRecord:
    """relu_ of [4, 1000]."""
    arguments = (("input", TensorRef(0)), ("inplace", True))
    variant = dataclasses.replace(relu_record.variant, arguments=arguments, outputs=(), mutates=(0,))
    return record_of(variant)


@pytest.fixture
def pool_record() -> VariantRecord:
    """max_pool2d 3x3, stride 2, padding 1, of [1, 8, 28, 28]."""
    variant = Variant(
        operator="max_pool2d",
        arguments=(
            ("input", TensorRef(0)), ("kernel_size", (3, 3)), ("stride", (2, 2)), ("padding", (1, 1)),
            ("dilation", (1, 1)), ("ceil_mode", False),
        ),
        tensors=(contiguous(Extent(1), Extent(8), Extent(28), Extent(28)),),
        outputs=(contiguous(Extent(1), Extent(8), Extent(14), Extent(14)),),
    )  # fmt: skip
    return record_of(variant)


@pytest.fixture(scope="session")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    return load_settings({"KFORGE_CACHE_DIR": str(tmp_path_factory.mktemp("cache"))})


@pytest.fixture(scope="session")
def backend(settings: Settings) -> Backend:
    return get_backend("cpp", settings)


@pytest.fixture(scope="session")
def judge(settings: Settings, backend: Backend) -> Iterator[Judge]:
    """One thread: the machines that run tests are busy, and the verdicts are what is tested, not the times."""
    quick = Protocol(budget_s=0.1, min_pairs=4, busy_share=1.0)
    limits = Limits(wall_s=3.0, memory_bytes=1 << 30)
    with Judge(settings, device="cpu", backend=backend, threads=1, protocol=quick, limits=limits) as made:
        yield made


@pytest.fixture(scope="session")
def examples(tmp_path_factory: pytest.TempPathFactory) -> ExampleStore:
    return ExampleStore(tmp_path_factory.mktemp("examples"))


@pytest.fixture
def evaluate(judge: Judge, examples: ExampleStore) -> Evaluate:
    """Judge a source for a variant."""

    def run(record: VariantRecord, source: str) -> Outcome:
        candidate = Candidate(variant_id=record.variant.id, source=source, backend="cpp", generator="manual")
        return judge.evaluate(candidate, record, examples).outcome

    return run


@pytest.fixture
def cache_folder(settings: Settings) -> Path:
    return settings.cache_dir
