"""What is left of a package when the whole model has been timed with it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from kernelforge import pipeline
from kernelforge.benchmark.types import Interval
from kernelforge.capture.models import LoadedModel
from kernelforge.dispatch.loading import LoadedPackage, load
from kernelforge.report.rows import WholeModel
from kernelforge.whole_model import measure_whole_model

FASTER, EQUAL = Interval(median=1.1, low=1.05, high=1.2), Interval(median=0.99, low=0.97, high=1.01)
SLOWER = Interval(median=0.95, low=0.93, high=0.97)


def states(path: Path) -> dict[str, str]:
    return {s.entry.variant.operator: s.reason for s in load(path).states}


@pytest.fixture
def ship(write: Callable[..., Path], x: torch.Tensor, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Ship a package of softmax and add for a model that only calls softmax, with these whole-model results."""

    def run(*results: Interval) -> tuple[Any, Path]:
        supply: Iterator[Interval] = iter(results)

        def measured(loaded: LoadedModel, package: LoadedPackage | None, *, device: str, budget_s: float) -> WholeModel:
            if package is not None:
                with package.dispatch():
                    loaded.calls[0]()
            return WholeModel(
                name="model", speedup=next(supply), eager_ms=1.0, fast_ms=1.0, output_max_abs=0.0, output_rel=0.0,
                outputs_match=True, hits=1, misses=0,
            )  # fmt: skip

        monkeypatch.setattr(pipeline, "measure_whole_model", measured)
        path = write("softmax", "add")
        loaded = LoadedModel(name="model", model=F.softmax, calls=(lambda: F.softmax(x, 1),))
        shipped = pipeline._ship(loaded, path, "cpu", 1.0, lambda _: None)
        assert next(supply, None) is None, "the model was timed too few times"
        return shipped, path

    return run


@pytest.mark.parametrize("result", [FASTER, EQUAL])
def test_a_package_that_is_not_slower_is_shipped_whole(ship: Callable[..., Any], result: Interval) -> None:
    shipped, path = ship(result)
    assert shipped.whole.speedup == result
    assert states(path) == {"softmax": "", "add": ""}
    assert shipped.decisions == {}


def test_what_the_model_never_reached_goes_first(ship: Callable[..., Any]) -> None:
    shipped, path = ship(SLOWER, EQUAL)
    assert states(path)["softmax"] == ""
    assert "the whole model was slower with it: 0.950x [0.930, 0.970]" in states(path)["add"]
    assert len(shipped.decisions) == 1
    assert shipped.package is not None and shipped.unused == ""


def test_nothing_is_shipped_that_makes_the_model_slower(ship: Callable[..., Any]) -> None:
    shipped, path = ship(SLOWER, SLOWER, EQUAL)
    assert all("slower" in reason for reason in states(path).values())
    assert len(shipped.decisions) == 2
    assert (shipped.package, shipped.unused) == (None, str(path))


def test_the_pairs_of_the_whole_model_are_counted(x: torch.Tensor) -> None:
    loaded = LoadedModel(name="model", model=F.softmax, calls=(lambda: F.softmax(x, 1),))
    whole = measure_whole_model(loaded, None, device="cpu", budget_s=0.0)
    assert (whole.pairs, whole.hits, whole.misses) == (5, 0, 0)
