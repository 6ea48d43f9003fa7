"""Builders of records and nodes for the tests of the search."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from kernelforge.audit.types import AuditKind, AuditLabel
from kernelforge.benchmark.types import Interval, Measurement
from kernelforge.build.types import Artifact
from kernelforge.capture.types import TensorRef
from kernelforge.cards.types import Extent, SizePoint, TensorPattern, Variant, VariantRecord
from kernelforge.digest import digest
from kernelforge.evaluate.types import Outcome, Scored, Trial
from kernelforge.generate.types import Candidate
from kernelforge.search.types import Node, node_of
from kernelforge.verify.types import Accepted, ErrorStatistics


@pytest.fixture
def make_record() -> Callable[..., VariantRecord]:
    """A variant of one float tensor; its operator's name makes it unlike others."""

    def make(operator: str = "relu", share: float = 0.5, forgeable: str = "") -> VariantRecord:
        tensor = TensorPattern(shape=(Extent(8),), stride=(Extent(1),), dtype="float32")
        variant = Variant(operator=operator, arguments=(("input", TensorRef(0)),), tensors=(tensor,), outputs=(tensor,))
        point = SizePoint(dims={}, scalars={}, calls=1, eager_us=10.0)
        return VariantRecord(variant=variant, points=(point,), share=share, forgeable=forgeable)

    return make


@pytest.fixture
def make_scored() -> Callable[..., Scored]:
    """An accepted outcome with a speed-up over an eager time of 10 us."""

    def make(
        speedup: float = 2.0, low: float | None = None, floor_us: float = 0.0, audit: AuditKind = AuditKind.GENERATED
    ) -> Scored:
        interval = Interval(median=speedup, low=0.95 * speedup if low is None else low, high=1.05 * speedup)
        return Scored(
            verdict=Accepted(
                cases=1, worst=ErrorStatistics(max_abs=0.0, rms=0.0, eager_max_abs=0.0, eager_rms=0.0), bitwise=True
            ),
            measurement=Measurement(
                points=(), speedup=interval, eager_us=10.0, candidate_us=10.0 / speedup, floor_us=floor_us,
                environment={},
            ),
            audit=AuditLabel(kind=audit, evidence=()),
            artifact=Artifact(
                digest="d" * 64, path=Path("kernel.so"), backend="cpp", target="t", compiler="c", flags=(),
                seconds=0.0, log="",
            ),
        )  # fmt: skip

    return make


@pytest.fixture
def make_node() -> Callable[..., Node]:
    """A stored trial; nodes with the same `source` are judgements of one candidate."""

    def make(number: int, outcome: Outcome, source: str = "", variant_id: str = "v") -> Node:
        candidate = Candidate(
            variant_id=variant_id, source=source or f"// {number}", backend="cpp", generator="template"
        )  # fmt: skip
        trial = Trial(candidate=candidate, outcome=outcome, started=float(number), seconds=1.0)
        return node_of(id=digest([candidate.id, number]), number=number, parent="", trial=trial)

    return make
