"""A variant of relu on either device, a backend of the CPU, and an accepted outcome to explain."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from kernelforge.audit.types import AuditKind, AuditLabel
from kernelforge.benchmark.types import Interval, Measurement, PointTiming
from kernelforge.build.backends import get_backend
from kernelforge.build.types import Artifact, Backend
from kernelforge.capture.types import TensorRef
from kernelforge.cards.examples import ExampleStore
from kernelforge.cards.types import Extent, SizePoint, TensorPattern, Variant, VariantRecord
from kernelforge.evaluate.types import Scored
from kernelforge.settings import Settings, load_settings
from kernelforge.verify.types import Accepted, ErrorStatistics


@pytest.fixture(scope="session")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    return load_settings({"KFORGE_CACHE_DIR": str(tmp_path_factory.mktemp("cache"))})


@pytest.fixture(scope="session")
def backend(settings: Settings) -> Backend:
    return get_backend("cpp", settings)


@pytest.fixture
def examples(tmp_path: Path) -> ExampleStore:
    return ExampleStore(tmp_path / "examples")


@pytest.fixture
def relu_record() -> VariantRecord:
    """relu of a fixed [4, 1000]."""
    pattern = TensorPattern(shape=(Extent(4), Extent(1000)), stride=(Extent(1000), Extent(1)), dtype="float32")
    arguments = (("input", TensorRef(0)), ("inplace", False))
    variant = Variant(operator="relu", arguments=arguments, tensors=(pattern,), outputs=(pattern,))
    return VariantRecord(
        variant=variant, points=(SizePoint(dims={}, scalars={}, calls=3, eager_us=20.0),), share=0.5
    )  # fmt: skip


@pytest.fixture
def inplace_record(relu_record: VariantRecord) -> VariantRecord:
    """relu_ of the same."""
    arguments = (("input", TensorRef(0)), ("inplace", True))
    return replace(relu_record, variant=replace(relu_record.variant, arguments=arguments, outputs=(), mutates=(0,)))


@pytest.fixture
def make_scored() -> Callable[..., Scored]:
    """An accepted candidate that takes `us` against a floor, `overhead_us` of it for the call."""

    def make(
        us: float, floor_us: float = 1.0, *, overhead_us: float = 0.0, regime: str = "warm", backend: str = "cpp",
        evidence: tuple[str, ...] = (), threads: int = 2, log: str = "", points: int = 1,
        low: float = 1.9, high: float = 2.1,
    ) -> Scored:  # fmt: skip
        interval = Interval(median=(low + high) / 2, low=low, high=high)
        point = PointTiming(
            dims={}, calls=3, eager_us=(2 * us,), candidate_us=(us,), speedup=interval, floor_us=floor_us, regime=regime
        )
        environment = {"threads": str(threads), "dispatch_overhead_us": f"{overhead_us:.2f} (added)"}
        error = ErrorStatistics(max_abs=0.0, rms=0.0, eager_max_abs=0.0, eager_rms=0.0)
        return Scored(
            verdict=Accepted(cases=12, worst=error, bitwise=True),
            measurement=Measurement(
                points=(point,) * points, speedup=interval, eager_us=2 * us, candidate_us=us, floor_us=floor_us,
                environment=environment,
            ),
            audit=AuditLabel(kind=AuditKind.GENERATED, evidence=evidence),
            artifact=Artifact(
                digest="d", path=Path("k.so"), backend=backend, target="sm_90" if backend == "cuda" else "x86-64-v3",
                compiler="c", flags=(), seconds=0.0, log=log,
            ),
        )  # fmt: skip

    return make
