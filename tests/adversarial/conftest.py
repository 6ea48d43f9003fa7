"""One arena for all tests of the suite; its build cache outlives a run of pytest."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

# The suite is a package of its own besides, so that it runs as a program too.
sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.adversarial.harness import Arena
from tests.adversarial.rows import CPU_ROWS


@pytest.fixture(scope="session")
def arena(request: pytest.FixtureRequest) -> Iterator[Arena]:
    cache = request.config.cache
    assert cache is not None
    with Arena(cache.mkdir("adversarial"), CPU_ROWS) as made:
        yield made
