"""The CUDA sources: compiled wherever nvcc is, judged where a GPU is."""

from __future__ import annotations

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.adversarial.harness import Arena, cached_settings, detail_of, verdict_of
from tests.adversarial.rows import CUDA_ROWS, Row
from tests.adversarial.variants import records

from kernelforge.build.backends import get_backend
from kernelforge.build.types import Artifact, BuildFailure
from kernelforge.generate.types import Candidate


@pytest.mark.nvcc
def test_all_compile_without_warnings(request: pytest.FixtureRequest) -> None:
    cache = request.config.cache
    assert cache is not None
    backend = get_backend("cuda", cached_settings(cache.mkdir("adversarial")), arch="sm_90")

    def build(row: Row) -> Artifact | BuildFailure:
        variant = records("cuda")[row.variant].variant
        source = row.path.read_text()
        return backend.build(
            Candidate(variant_id=variant.id, source=source, backend="cuda", generator="manual"), variant
        )  # fmt: skip

    with ThreadPoolExecutor(2) as pool:
        for row, built in zip(CUDA_ROWS, pool.map(build, CUDA_ROWS), strict=True):
            assert isinstance(built, Artifact), (row.name, built)
            # The prelude defines constants that not every kernel uses.
            assert not re.findall(r"^kernel\.cu.*warning.*", built.log, re.MULTILINE), (row.name, built.log)


@pytest.fixture(scope="session")
def cuda_arena(request: pytest.FixtureRequest) -> Iterator[Arena]:
    cache = request.config.cache
    assert cache is not None
    with Arena(cache.mkdir("adversarial"), CUDA_ROWS, device="cuda") as made:
        yield made


@pytest.mark.gpu
@pytest.mark.nvcc
@pytest.mark.parametrize("row", CUDA_ROWS, ids=lambda row: row.name)
def test_verdict(cuda_arena: Arena, row: Row) -> None:
    outcome = cuda_arena.judge(row)
    assert verdict_of(outcome) in row.verdicts, (verdict_of(outcome), detail_of(outcome))
