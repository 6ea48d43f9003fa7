"""Builders of cards, trials and projects for the tests of the store."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import pytest

from kernelforge.audit.types import AuditKind, AuditLabel
from kernelforge.benchmark.types import Interval, Measurement, PointTiming
from kernelforge.build.types import Artifact
from kernelforge.capture.types import TensorRef
from kernelforge.cards.types import Extent, OperatorCard, SizePoint, TensorPattern, Variant, VariantRecord
from kernelforge.digest import Json
from kernelforge.evaluate.types import Outcome, Scored, Trial
from kernelforge.generate.types import Candidate
from kernelforge.store.project import Project
from kernelforge.verify.types import Accepted, ErrorStatistics, Rejected, RejectReason


def _record(operator: str, size: int, share: float) -> VariantRecord:
    tensor = TensorPattern(shape=(Extent(size),), stride=(Extent(1),), dtype="float32")
    variant = Variant(operator=operator, arguments=(("input", TensorRef(0)),), tensors=(tensor,), outputs=(tensor,))
    return VariantRecord(
        variant=variant, points=(SizePoint(dims={}, scalars={}, calls=3, eager_us=2.5),), share=share
    )  # fmt: skip


@pytest.fixture
def cards() -> tuple[OperatorCard, ...]:
    """Two variants of relu with a small share, one of add with a large one."""
    relu = (_record("relu", 8, 0.1), _record("relu", 16, 0.2))
    return (
        OperatorCard(operator="relu", model="tiny", device="cpu", variants=relu),
        OperatorCard(operator="add", model="tiny", device="cpu", variants=(_record("add", 8, 0.7),)),
    )


@pytest.fixture
def project(tmp_path: Path, cards: tuple[OperatorCard, ...]) -> Project:
    """A new project in a folder of its own."""
    info: dict[str, Json] = {"coverage": 0.9, "warnings": ["one"], "unsupported": {"mm": 2}}
    return Project.create(tmp_path / "tiny.kforge", model="tiny", device="cpu", cards=cards, capture_info=info)


@pytest.fixture
def scored(tmp_path: Path) -> Scored:
    """An accepted outcome whose binary exists."""
    binary = tmp_path / "cached.so"
    binary.write_bytes(b"\x7fELF a binary")
    interval = Interval(median=1.5, low=1.25, high=1.75)
    point = PointTiming(
        dims={"n0": 8}, calls=3, eager_us=(3.0, 0.1 + 0.2), candidate_us=(2.0, 1e-300), speedup=interval,
        floor_us=0.5, regime="cold",
    )  # fmt: skip
    return Scored(
        verdict=Accepted(
            cases=4, worst=ErrorStatistics(max_abs=1e-7, rms=1e-8, eager_max_abs=0.0, eager_rms=0.0), bitwise=False
        ),
        measurement=Measurement(
            points=(point,), speedup=interval, eager_us=3.0, candidate_us=2.0, floor_us=0.5,
            environment={"device": "a CPU"},
        ),
        audit=AuditLabel(kind=AuditKind.GENERATED, evidence=("links libc",)),
        artifact=Artifact(
            digest=hashlib.sha256(binary.read_bytes()).hexdigest(), path=binary, backend="cpp", target="x86-64-v3",
            compiler="g++ 12", flags=("-O3", "-shared"), seconds=0.25, log="warning: ü",
        ),
    )  # fmt: skip


@pytest.fixture
def make_trial(cards: tuple[OperatorCard, ...]) -> Callable[..., Trial]:
    """A trial of the first variant of relu; its number makes source and start unlike those of others."""
    variant_id = cards[0].variants[0].variant.id
    wrong = Rejected(
        reason=RejectReason.WRONG_VALUE, case="n0=8, normal", detail="out[3] is 1, expected 2", worst_abs=1.0
    )

    def make(number: int = 1, outcome: Outcome = wrong, parent: str = "") -> Trial:
        candidate = Candidate(
            variant_id=variant_id, source=f"// candidate {number}\n", backend="cpp", generator="template", parent=parent
        )  # fmt: skip
        return Trial(candidate=candidate, outcome=outcome, started=1000.0 + number, seconds=0.5)

    return make
