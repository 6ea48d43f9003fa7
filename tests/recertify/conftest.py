"""Packages of right and of wrong CPU kernels that claim to have been made under another torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from kernelforge.audit.types import AuditKind, AuditLabel
from kernelforge.benchmark.types import Interval, Measurement, PointTiming
from kernelforge.build.backends import get_backend
from kernelforge.build.types import Artifact
from kernelforge.capture.types import TensorRef, Value
from kernelforge.cards.types import Dim, Extent, TensorPattern, Variant
from kernelforge.evaluate.types import Scored
from kernelforge.generate.types import Candidate
from kernelforge.package.serial import make_entry
from kernelforge.package.signing import local_signer
from kernelforge.package.types import Entry, Header, Off, Use
from kernelforge.package.writer import write_package
from kernelforge.settings import Settings, load_settings
from kernelforge.verify.types import Accepted, ErrorStatistics

OTHER_TORCH = "2.4.1"

# A call of eager's costs as much as a small kernel: these are large enough for a kernel of one pass to win or lose.
ROWS = Extent(1, ("n0",))
PATTERN = TensorPattern(shape=(ROWS, Extent(64)), stride=(Extent(64), Extent(1)), dtype="float32")


def variant_of(operator: str, arguments: Mapping[str, Value]) -> Variant:
    """A variant on float32 tensors [n0, 64] with n0 in [1, 256]."""
    return Variant(
        operator=operator, arguments=tuple(arguments.items()), tensors=(PATTERN,), outputs=(PATTERN,),
        dims=(Dim(name="n0", low=1, high=256),),
    )  # fmt: skip


def loop(expression: str) -> str:
    """A kernel that computes one expression of `v` for each element."""
    return f"""
extern "C" int launch(const float* input, int64_t n0, float* out, void* workspace) {{
  for (int64_t i = 0; i < 64 * n0; ++i) {{ const float v = input[i]; out[i] = {expression}; }}
  return 0;
}}
"""


KERNELS = {
    "relu": (variant_of("relu", {"input": TensorRef(0), "inplace": False}), loop("v > 0 ? v : (v != v ? v : 0.0f)")),
    "abs": (variant_of("abs", {"input": TensorRef(0), "inplace": False}), loop("std::fabs(v)")),
    "wrong": (variant_of("neg", {"input": TensorRef(0), "inplace": False}), loop("v > 3.0f ? v : -v")),
}


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    """Settings whose cache all tests here share; each has a configuration folder of its own."""
    return replace(load_settings({}), cache_dir=tmp_path_factory.mktemp("cache"), library=False)


@pytest.fixture
def settings(cache: Settings, tmp_path: Path) -> Settings:
    return replace(cache, config_dir=tmp_path / "config")


@pytest.fixture(scope="session")
def entries(cache: Settings) -> Mapping[str, Entry]:
    """An entry for each of `KERNELS`, as if each had passed the judge."""
    backend = get_backend("cpp", cache)
    made: dict[str, Entry] = {}
    for name, (variant, source) in KERNELS.items():
        candidate = Candidate(variant_id=variant.id, source=source, backend="cpp", generator="manual")
        artifact = backend.build(candidate, variant)
        assert isinstance(artifact, Artifact), artifact
        made[name] = make_entry(
            variant=variant, candidate=candidate, scored=_scored(artifact), share=0.1 * (1 + len(made)),
            decisions={"eager": Use(), "graphed": Off(reason="not measured"), "compiled": Off(reason="not measured")},
        )  # fmt: skip
    return made


def _scored(artifact: Artifact) -> Scored:
    interval = Interval(median=5.0, low=4.5, high=5.5)
    point = PointTiming(
        dims={"n0": 64}, calls=3, eager_us=(40.0, 41.0), candidate_us=(8.0, 8.2), speedup=interval, floor_us=1.0,
        regime="cold",
    )  # fmt: skip
    return Scored(
        verdict=Accepted(
            cases=3, worst=ErrorStatistics(max_abs=0.0, rms=0.0, eager_max_abs=0.0, eager_rms=0.0), bitwise=True
        ),
        measurement=Measurement(
            points=(point,), speedup=interval, eager_us=40.0, candidate_us=8.0, floor_us=1.0, environment={},
        ),
        audit=AuditLabel(kind=AuditKind.GENERATED, evidence=()), artifact=artifact,
    )  # fmt: skip


@pytest.fixture
def write(entries: Mapping[str, Entry], tmp_path: Path, settings: Settings) -> Callable[..., Path]:
    """Write a package of entries, given themselves or by name, that was made under some torch."""

    def write_some(*chosen: str | Entry, torch_version: str = OTHER_TORCH, name: str = "model") -> Path:
        path = tmp_path / f"{name}.cast"
        header = Header(name=name, device="cpu", torch=torch_version, created_by="test")
        some = [entries[c] if isinstance(c, str) else c for c in chosen]
        write_package(path, some, header=header, signer=local_signer(settings.config_dir))
        return path

    return write_some


@pytest.fixture
def x() -> torch.Tensor:
    return torch.linspace(-4, 4, 64 * 64).reshape(64, 64)
