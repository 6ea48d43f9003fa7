"""Entries with made-up binaries: reading and writing do not look into them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from kernelforge.audit.types import AuditKind, AuditLabel
from kernelforge.benchmark.types import Interval, Measurement, PointTiming
from kernelforge.build.types import Artifact
from kernelforge.capture.types import TensorRef
from kernelforge.cards.types import Dim, Extent, TensorPattern, Variant
from kernelforge.digest import digest_bytes
from kernelforge.evaluate.types import Scored
from kernelforge.generate.types import Candidate
from kernelforge.package.serial import make_entry
from kernelforge.package.types import Entry, Header, Off, Use
from kernelforge.package.writer import write_package
from kernelforge.verify.types import Accepted, ErrorStatistics

DECISIONS: dict[str, Use | Off] = {
    "eager": Use(),
    "graphed": Off(reason="not measured"),
    "compiled": Off(reason="not measured"),
}


@pytest.fixture
def header() -> Header:
    return Header(name="tiny", device="cpu", torch="2.13.0", created_by="test")


@pytest.fixture
def scored(tmp_path: Path) -> Scored:
    binary = tmp_path / "kernel.so"
    binary.write_bytes(b"\x7fELF" + bytes(range(256)) * 40)
    return Scored(
        verdict=Accepted(
            cases=4,
            worst=ErrorStatistics(max_abs=1e-7, rms=float("nan"), eager_max_abs=2e-7, eager_rms=1e-8),
            bitwise=False,
        ),
        measurement=Measurement(
            points=(
                PointTiming(
                    dims={"n0": 4}, calls=3, eager_us=(40.0, 41.5), candidate_us=(10.0, 10.25),
                    speedup=Interval(median=4.0, low=3.9, high=4.1), floor_us=2.0, regime="cold",
                ),
            ),
            speedup=Interval(median=4.0, low=3.9, high=4.1), eager_us=40.75, candidate_us=10.125, floor_us=2.0,
            environment={"torch": "2.13.0"},
        ),
        audit=AuditLabel(kind=AuditKind.GENERATED, evidence=("calls nothing",)),
        artifact=Artifact(
            digest=digest_bytes(binary.read_bytes()), path=binary, backend="cpp", target="x86-64-v3",
            compiler="g++ 12", flags=("-O3",), seconds=1.0, log="",
        ),
    )  # fmt: skip


@pytest.fixture
def entry_of(scored: Scored) -> Callable[[str], Entry]:
    """An entry for an operator of one float32 tensor [n0, 8]."""

    def entry(operator: str) -> Entry:
        pattern = TensorPattern(shape=(Extent(1, ("n0",)), Extent(8)), stride=(Extent(8), Extent(1)), dtype="float32")
        variant = Variant(
            operator=operator, arguments=(("input", TensorRef(0)), ("scale", 1.0)), tensors=(pattern,),
            outputs=(pattern,), dims=(Dim(name="n0", low=1, high=64),),
        )  # fmt: skip
        candidate = Candidate(variant_id=variant.id, source="int x; // ä\n" * 40, backend="cpp", generator="manual")
        return make_entry(variant=variant, candidate=candidate, scored=scored, share=0.25, decisions=DECISIONS)

    return entry


@pytest.fixture
def written(tmp_path: Path, header: Header, entry_of: Callable[[str], Entry]) -> Path:
    """A package of two entries."""
    path = tmp_path / "model.cast"
    write_package(path, [entry_of("relu"), entry_of("exp")], header=header)
    return path
