"""Every proposal of the template generator under the sanitizers: some minutes, so it is run by name only.

python -m pytest tests/evaluate/memcheck_all_families.py
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

from kernelforge.cards.examples import ExampleStore
from kernelforge.evaluate.types import MemoryPassed
from kernelforge.settings import Settings


def _load(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location("memcheck_tests", path)
    assert spec is not None and spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


TESTS = _load(Path(__file__).with_name("test_memcheck.py"))
FAMILIES = TESTS.load_families()


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("dtype", FAMILIES.DTYPES)
@pytest.mark.parametrize("name", FAMILIES.CASES)
def test_every_proposal_passes(settings: Settings, examples: ExampleStore, name: str, dtype: str) -> None:
    variant = FAMILIES.variant_of(FAMILIES.CASES[name], dtype, "cpu")
    cases = TESTS.cases_of(TESTS.batched(variant), examples, {"n0": 1}, {"n0": 13}, {"n0": 64})
    for candidate in FAMILIES.proposals(variant, "cpp"):
        result = TESTS.check_source(variant, candidate.source, cases, settings)
        assert isinstance(result, MemoryPassed), f"{candidate.notes}: {result}"
